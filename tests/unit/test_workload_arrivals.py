import math
from itertools import pairwise
from statistics import fmean, pstdev

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.errors import UsageError
from loadgen.workload.arrivals import ConstantPacer, GammaPacer, Rate, make_pacer

MANY = 20_000


def distances_s(pacer: GammaPacer) -> list[float]:
    return [later - earlier for earlier, later in pairwise(pacer.next_s() for _ in range(MANY))]


def times_s(pacer: ConstantPacer | GammaPacer, until_s: float) -> list[float]:
    found: list[float] = []
    while not found or found[-1] < until_s:
        found.append(pacer.next_s())
    return found[:-1]


def test_constant_arrivals_do_not_drift() -> None:
    pacer = ConstantPacer(Rate.parse("3"))
    found = [pacer.next_s() for _ in range(30_001)]
    assert found[:2] == [0.0, pytest.approx(1 / 3)]
    assert found[30_000] == 10_000.0


def test_poisson_arrivals_have_exponential_distances() -> None:
    found = distances_s(GammaPacer(Rate.parse("50"), 1.0, seed=1))
    assert min(found) >= 0
    assert fmean(found) == pytest.approx(0.02, rel=0.03)
    longer = sum(each > 0.02 for each in found) / len(found)
    assert longer == pytest.approx(math.exp(-1), abs=0.02)


@pytest.mark.parametrize("burstiness", [0.25, 4.0])
def test_gamma_arrivals_keep_the_rate_and_vary_as_their_burstiness_says(burstiness: float) -> None:
    found = distances_s(GammaPacer(Rate.parse("50"), burstiness, seed=3))
    assert fmean(found) == pytest.approx(0.02, rel=0.05)
    assert pstdev(found) / fmean(found) == pytest.approx(burstiness**-0.5, rel=0.06)


def test_random_arrivals_are_those_of_the_seed() -> None:
    def first(seed: int) -> list[float]:
        pacer = GammaPacer(Rate.parse("2"), 0.5, seed)
        return [pacer.next_s() for _ in range(100)]

    assert first(1) == first(1)
    assert first(1) != first(2)


def test_a_ramp_is_a_poisson_process_at_every_part_of_it() -> None:
    """Counts in ten equal parts of the ramp vary around the rate there as Poisson counts do."""
    ramp_s, parts, seeds = 10.0, 10, 400
    counts = [[0] * seeds for _ in range(parts)]
    for seed in range(seeds):
        for time_s in times_s(GammaPacer(Rate.parse("2-20:10"), 1.0, seed), ramp_s):
            counts[int(time_s / ramp_s * parts)][seed] += 1
    for part, found in enumerate(counts):
        expected = 2 + 18 * (part + 0.5) / parts
        assert fmean(found) == pytest.approx(expected, rel=0.1)
        assert pstdev(found) ** 2 == pytest.approx(expected, rel=0.3)


def test_steps_and_pauses_come_when_they_should() -> None:
    found = times_s(ConstantPacer(Rate.parse("2:10, 0:5, 4")), 20.0)
    assert sum(time_s < 10 for time_s in found) == 20
    assert not [time_s for time_s in found if 10 < time_s < 15]
    assert sum(time_s >= 15 for time_s in found) == 20


@given(
    st.lists(
        st.tuples(st.floats(0, 50), st.floats(0, 50), st.floats(0.01, 100)), min_size=1, max_size=5
    ),
    st.lists(st.floats(0, 2000), min_size=2, max_size=20),
)
def test_times_are_where_the_mean_reaches_the_count(
    phases: list[tuple[float, float, float]], arrivals: list[float]
) -> None:
    rate = Rate.parse(",".join(f"{a:.6f}-{b:.6f}:{s:.6f}" for a, b, s in phases) + ",1")
    found = [rate.time_s(count) for count in sorted(arrivals)]
    assert found == sorted(found)
    for count, time_s in zip(sorted(arrivals), found, strict=True):
        assert expected_until(rate, time_s) == pytest.approx(count, rel=1e-6, abs=1e-4)


def expected_until(rate: Rate, time_s: float) -> float:
    """The area below the rate, by adding up its phases."""
    area = 0.0
    for phase in rate.phases:
        part_s = min(time_s, phase.seconds)
        slope = 0.0 if math.isinf(phase.seconds) else (phase.last - phase.first) / phase.seconds
        area += phase.first * part_s + slope * part_s * part_s / 2
        time_s -= part_s
    return area


@pytest.mark.parametrize(("text", "first"), [("5e-1", 0.5), ("+5", 5), ("1e-1-2e+1:10,1", 0.1)])
def test_a_rate_may_have_an_exponent(text: str, first: float) -> None:
    assert Rate.parse(text).phases[0].first == first


def test_pacers_by_name() -> None:
    rate = Rate.parse("2")
    assert make_pacer("closed", None, 0) is None
    assert isinstance(make_pacer("constant", rate, 0), ConstantPacer)
    poisson, gamma = make_pacer("poisson", rate, 0), make_pacer("gamma", rate, 0, 1.0)
    assert poisson is not None
    assert gamma is not None
    assert [poisson.next_s() for _ in range(9)] == [gamma.next_s() for _ in range(9)]


@pytest.mark.parametrize(
    ("arrivals", "rate", "burstiness", "telling"),
    [
        ("closed", "3", None, "--rate 3"),
        ("constant", None, None, "--rate"),
        ("poisson", None, None, "--rate"),
        ("bursty", "1", None, "--arrivals 'bursty'"),
        ("poisson", "1", 2.0, "--burstiness 2 needs --arrivals gamma"),
    ],
)
def test_wrong_use_names_the_option(
    arrivals: str, rate: str | None, burstiness: float | None, telling: str
) -> None:
    with pytest.raises(UsageError) as error:
        make_pacer(arrivals, Rate.parse(rate) if rate else None, 0, burstiness)
    assert telling in str(error.value)


@pytest.mark.parametrize(
    ("text", "telling"),
    [
        ("0", "ends at no rate"),
        ("5:10,0", "ends at no rate"),
        ("-1", "no rate"),
        ("nan", "no rate"),
        ("", "no rate"),
        ("5,", "no rate"),
        ("1e999", "out of range"),
        ("1000001", "at most 1,000,000 requests a second"),
        ("1-1e9:60,5", "at most 1,000,000 requests a second"),
        ("5:0", "out of range"),
        ("5,6", "without a length"),
        ("1-5", "ramps without an end"),
    ],
)
def test_a_rate_that_cannot_be_is_refused(text: str, telling: str) -> None:
    with pytest.raises(UsageError) as error:
        Rate.parse(text)
    assert telling in str(error.value)
    assert f"--rate {text!r}" in str(error.value)


def test_a_rate_says_itself_as_it_was_written() -> None:
    assert str(Rate.parse("5")) == "5"
    assert str(Rate.parse(" 2:30s, 2-10:60 ,10")) == "2:30,2-10:60,10"
