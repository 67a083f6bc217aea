import math
from random import Random
from statistics import fmean

import pytest

from loadgen.stats.steady_state import Steady, steady_from


def noise(count: int, seed: int) -> list[float]:
    random = Random(seed)
    return [random.gauss(100, 10) for _ in range(count)]


@pytest.mark.parametrize("seed", range(20))
def test_a_run_that_is_steady_from_the_start_loses_little(seed: int) -> None:
    found = steady_from(noise(1000, seed))
    assert found.settled
    assert found.warm_up <= 450


def test_steady_runs_lose_little_on_average() -> None:
    assert fmean(steady_from(noise(1000, seed)).warm_up for seed in range(50)) < 120


@pytest.mark.parametrize("seed", range(20))
def test_the_decay_of_a_cold_start_is_cut_off(seed: int) -> None:
    values = [v + 400 * math.exp(-at / 50) for at, v in enumerate(noise(1000, seed))]
    found = steady_from(values)
    assert found.settled
    assert 100 <= found.warm_up <= 500
    assert fmean(values[found.warm_up :]) == pytest.approx(100, abs=6)


@pytest.mark.parametrize("seed", range(20))
def test_a_run_that_gets_slower_and_slower_never_settles(seed: int) -> None:
    values = [value + at for at, value in enumerate(noise(1000, seed))]
    assert steady_from(values) == Steady(0, False)


def test_a_few_values_tell_nothing() -> None:
    assert steady_from([1.0] * 49) == Steady(0, None)
    assert steady_from([]) == Steady(0, None)
    assert steady_from([1.0] * 50) == Steady(0, True)
