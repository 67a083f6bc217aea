import math
from itertools import pairwise

import pytest

from loadgen.errors import UsageError
from loadgen.workload.arrivals import ConstantPacer, PoissonPacer, make_pacer


def test_constant_arrivals_do_not_drift() -> None:
    pacer = ConstantPacer(3.0)
    times_s = [pacer.next_s() for _ in range(30_001)]
    assert times_s[:2] == [0.0, pytest.approx(1 / 3)]
    assert times_s[30_000] == 10_000.0
    assert pacer.rate_per_s(5.0) == 3.0


def test_poisson_arrivals_have_exponential_distances() -> None:
    pacer = PoissonPacer(50.0, seed=1)
    times_s = [0.0] + [pacer.next_s() for _ in range(20_000)]
    distances_s = [later - earlier for earlier, later in pairwise(times_s)]
    assert min(distances_s) >= 0
    assert times_s[-1] == pytest.approx(400, rel=0.03)
    longer = sum(distance_s > 0.02 for distance_s in distances_s) / 20_000
    assert longer == pytest.approx(math.exp(-1), abs=0.02)
    assert pacer.rate_per_s(0.0) == 50.0


def test_poisson_arrivals_are_those_of_the_seed() -> None:
    def times_s(seed: int) -> list[float]:
        pacer = PoissonPacer(2.0, seed)
        return [pacer.next_s() for _ in range(100)]

    assert times_s(1) == times_s(1)
    assert times_s(1) != times_s(2)


def test_pacers_by_name() -> None:
    assert make_pacer("closed", None, 0) is None
    assert isinstance(make_pacer("constant", 2, 0), ConstantPacer)
    assert isinstance(make_pacer("poisson", 0.5, 0), PoissonPacer)


@pytest.mark.parametrize(
    ("arrivals", "rate", "telling"),
    [
        ("closed", 3.0, "--rate 3.0"),
        ("constant", None, "--rate"),
        ("poisson", None, "--rate"),
        ("poisson", 0.0, "--rate 0.0"),
        ("constant", -1.0, "--rate -1.0"),
        ("constant", math.nan, "--rate nan"),
        ("poisson", math.inf, "--rate inf"),
        ("bursty", 1.0, "--arrivals 'bursty'"),
    ],
)
def test_wrong_use_names_the_option(arrivals: str, rate: float | None, telling: str) -> None:
    with pytest.raises(UsageError) as error:
        make_pacer(arrivals, rate, 0)
    assert telling in str(error.value)
