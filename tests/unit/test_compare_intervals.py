"""Intervals against known truth: seeded series whose true difference is 0, or is not."""

from dataclasses import replace

import numpy as np
import pytest
from compare_runs import ar1, run_of
from scipy.stats import binom

from loadgen.compare.comparison import compare
from loadgen.compare.estimate import QuantileEstimate
from loadgen.compare.interval import between_repeats
from loadgen.compare.judgement import knows_spread
from loadgen.compare.metrics import parse_statistic
from loadgen.compare.noise import measure_noise
from loadgen.compare.run import ComparedRun
from loadgen.compare.series import Ratio, Values
from loadgen.compare.sides import Sides, scale_of
from loadgen.errors import UsageError
from loadgen.runs.columns import Floats

PAIRS, LEVEL = 200, 0.99
TOLERATED = int(binom.ppf(0.999, PAIRS, 1 - LEVEL))
"""So many of the pairs miss the truth once in a thousand where intervals keep what they promise."""


def latencies(rng: np.random.Generator, correlation: float, length: int = 400) -> Floats:
    return 100 * np.exp(0.5 * ar1(rng, length, correlation))


def misses(pairs: list[Sides], name: str, truth: float = 0.0) -> int:
    statistic = parse_statistic(name)
    found = [sides.difference(statistic, LEVEL, scale_of(statistic)) for sides in pairs]
    return sum(each is None or not each.low <= truth <= each.high for each in found)


@pytest.mark.parametrize("correlation", [0.0, 0.8])
@pytest.mark.parametrize("statistic", ["mean", "p50", "p95"])
def test_identical_runs_differ_as_rarely_as_promised(correlation: float, statistic: str) -> None:
    rng = np.random.default_rng(1)
    pairs = [
        Sides(*((run_of(latencies(rng, correlation)),) for _ in range(2))) for _ in range(PAIRS)
    ]
    assert misses(pairs, f"ttft_ms.{statistic}") <= TOLERATED


def test_intervals_that_take_requests_for_independent_would_not_do() -> None:
    """The series are hard enough to tell: shuffled, their order is lost and so is the promise."""
    rng = np.random.default_rng(1)
    pairs = [
        Sides(*((run_of(rng.permutation(latencies(rng, 0.6))),) for _ in range(2)))
        for _ in range(PAIRS)
    ]
    assert misses(pairs, "ttft_ms.mean") > 2 * TOLERATED


def test_a_rate_that_comes_in_waves() -> None:
    rng = np.random.default_rng(2)

    def run() -> ComparedRun:
        seconds = np.exp(0.5 * ar1(rng, 300, 0.6))
        return ComparedRun("run", {"requests_per_s": Ratio(np.ones(300), seconds, 300)})

    assert misses([Sides((run(),), (run(),)) for _ in range(PAIRS)], "requests_per_s") <= TOLERATED


@pytest.mark.parametrize(("share", "requests"), [(0.02, 200), (0.5, 100)])
def test_errors(share: float, requests: int) -> None:
    rng = np.random.default_rng(3)

    def run() -> ComparedRun:
        failed = (rng.random(requests) < share).astype(float)
        return ComparedRun(
            "run", {"errors": Ratio(failed, np.ones(requests), requests, counts=True)}
        )

    assert misses([Sides((run(),), (run(),)) for _ in range(PAIRS)], "errors") <= TOLERATED


def test_no_error_among_a_hundred_is_not_known_to_be_none() -> None:
    interval = Sides((run_of(),), (run_of(),)).new_alone(parse_statistic("errors"), LEVEL)
    assert interval is not None
    assert interval.estimate == interval.low == 0
    assert 0.04 < interval.high < 0.12  # Wilson's is 0.062 with a normal quantile


def test_a_slow_down_is_found_and_its_size_is_right() -> None:
    rng = np.random.default_rng(4)
    pairs = [
        Sides((run_of(latencies(rng, 0.3)),), (run_of(1.4 * latencies(rng, 0.3)),))
        for _ in range(PAIRS)
    ]
    assert misses(pairs, "ttft_ms.mean", truth=0.0) > 0.9 * PAIRS
    assert misses(pairs, "ttft_ms.mean", truth=np.log(1.4)) <= TOLERATED


def test_what_both_sides_share_cancels_out() -> None:
    rng = np.random.default_rng(5)
    mean = parse_statistic("ttft_ms.mean")
    widths: dict[str, float] = {}
    prompts = 100 * np.exp(ar1(rng, 400, 0.3))
    for name, other in (("same", prompts), ("other", rng.permutation(prompts))):
        errors = np.exp(0.05 * rng.standard_normal((2, 400)))
        base, new = run_of(prompts * errors[0]), run_of(other * errors[1])
        interval = Sides((base,), (new,)).difference(mean, LEVEL, "log")
        assert interval is not None
        widths[name] = interval.high - interval.low
    assert widths["same"] < 0.3 * widths["other"]


def test_too_few_values_beyond_a_percentile_leave_the_interval_open() -> None:
    rng = np.random.default_rng(6)
    sides = Sides(*((run_of(latencies(rng, 0.0, 60)),) for _ in range(2)))
    interval = sides.difference(parse_statistic("ttft_ms.p95"), LEVEL, "log")
    assert interval is not None
    assert (interval.low, interval.high) == (-np.inf, np.inf)


@pytest.mark.parametrize(("samples", "is_open"), [(100, True), (110, False)])
def test_a_p95_has_an_upper_end_from_104_independent_values(samples: int, is_open: bool) -> None:
    values = np.tile([*range(1, 10), 10.0 + samples], samples // 10)  # every tenth lies beyond
    found = QuantileEstimate(Values(values), 0.95, 10).bounds(t=2.576)
    assert np.isinf(found[1]) == is_open
    assert np.isfinite(found[0])


def test_the_low_end_of_a_p95_holds_where_four_requests_each_are_alike() -> None:
    """As of users in step; the normal limit of the binomial misses three times as often."""
    rng = np.random.default_rng(11)
    ends = [
        QuantileEstimate(Values(np.repeat(rng.standard_normal(75), 4)), 0.95, 30).bounds(t=2.756)[0]
        for _ in range(1_000)
    ]
    assert np.mean(np.asarray(ends) > 1.645) < 0.006


def repeats(
    rng: np.random.Generator, seeds: tuple[int, ...], effects: dict[int, float]
) -> tuple[ComparedRun, ...]:
    """Runs that differ by 20 % beyond what each can know, and by what their seed makes of them."""
    return tuple(
        run_of(np.exp(0.2 * rng.standard_normal() + effects[seed]) * latencies(rng, 0.0), seed=seed)
        for seed in seeds
    )


@pytest.mark.parametrize("seeds", [(0, 0, 0), (0, 1, 2, 3)])
def test_repeats_show_how_runs_differ(seeds: tuple[int, ...]) -> None:
    rng = np.random.default_rng(7)
    pairs = []
    for _ in range(PAIRS):
        effects = {seed: float(rng.standard_normal()) for seed in seeds}
        pairs.append(Sides(*(repeats(rng, seeds, effects) for _ in range(2))))
    assert misses(pairs, "ttft_ms.mean") <= TOLERATED


def test_a_single_pair_needs_the_noise_of_the_machine() -> None:
    rng = np.random.default_rng(8)
    noise = measure_noise(repeats(rng, (0,) * 8, {0: 0.0}))
    known = noise.deviations["ttft_ms.mean"]["log"]
    assert 0.1 < known < 0.35  # 0.2, from eight runs
    runs = [repeats(rng, (0, 0), {0: 0.0}) for _ in range(PAIRS)]
    alone = [Sides((base,), (new,)) for base, new in runs]
    with_noise = [Sides((base,), (new,), noise) for base, new in runs]
    assert misses(alone, "ttft_ms.mean") > 0.2 * PAIRS
    # The noise is measured once, so all pairs share what its eight runs happened to show.
    assert misses(with_noise, "ttft_ms.mean") <= 3 * TOLERATED


@pytest.mark.parametrize("bases", [1, 5])
def test_a_single_new_run_does_not_know_how_runs_differ(bases: int) -> None:
    """Five runs of the base show it; beside one, and without noise, nothing does."""
    rng = np.random.default_rng(10)
    truth, name = 100 * np.exp(0.5**2 / 2), parse_statistic("ttft_ms.mean")
    found = [
        Sides(repeats(rng, (0,) * bases, {0: 0.0}), repeats(rng, (0,), {0: 0.0})).new_alone(
            name, LEVEL
        )
        for _ in range(PAIRS)
    ]
    missed = sum(each is None or not each.low <= truth <= each.high for each in found)
    assert missed <= TOLERATED if bases == 5 else missed > 0.2 * PAIRS


def test_the_noise_of_the_machine_stands_for_a_single_new_run() -> None:
    rng = np.random.default_rng(11)
    noise = measure_noise(repeats(rng, (0,) * 8, {0: 0.0}))
    base, new = (repeats(rng, (0,) * count, {0: 0.0}) for count in (5, 1))
    name = parse_statistic("ttft_ms.mean")
    sides = Sides(base[:1], new), Sides(base[:1], new, noise), Sides(base, new, noise)
    alone, noisy, beside_five = (each.new_alone(name, LEVEL) for each in sides)
    assert alone is not None
    assert noisy is not None
    assert noisy.high / noisy.low > 2 * alone.high / alone.low
    assert beside_five == noisy


def test_a_third_run_of_one_side_that_leaves_no_freedom_tells_no_spread() -> None:
    rng = np.random.default_rng(12)
    base = tuple(run_of(latencies(rng, 0.3, 300), seed=seed) for seed in (1, 2))
    sides = Sides(base, (run_of(1.02 * latencies(rng, 0.3, 300), seed=1),))
    repeated = replace(sides, new=(*sides.new, run_of(latencies(rng, 0.3, 300), seed=2)))
    assert not sides.shows_spread
    assert repeated.shows_spread
    statistic = parse_statistic("ttft_ms.mean")
    assert not knows_spread(sides, statistic)
    assert "too few repeats: how much identical runs differ" in " ".join(
        compare(sides, [statistic], vary=["seed"]).remarks
    )


def test_runs_without_noise_have_none() -> None:
    rng = np.random.default_rng(9)
    noise = measure_noise([run_of(latencies(rng, 0.3, 100)) for _ in range(12)])
    assert noise.deviations["ttft_ms.mean"]["log"] < 0.5 * noise.totals["ttft_ms.mean"]


def test_simulated_runs_have_no_noise() -> None:
    rng = np.random.default_rng(9)
    runs = [run_of(latencies(rng, 0.3, 100), cache_state="simulated") for _ in range(3)]
    with pytest.raises(UsageError, match="run is simulated, and no server differs in it"):
        measure_noise(runs)


def test_repeats_whose_seeds_only_one_side_has_are_compared_without_them() -> None:
    found = between_repeats([10.0, 12.0], [20.0, 22.0], (["1", "1"], ["2", "2"]), LEVEL)
    plain = between_repeats([10.0, 12.0], [20.0, 22.0], (["1", "1"], ["1", "1"]), LEVEL)
    assert found is not None
    assert found == plain
    assert found.estimate == pytest.approx(10.0)


def test_equal_figures_differ_by_nothing_at_all() -> None:
    for seeds in (["1", "2", "3"], ["1", "1", "1"]):
        found = between_repeats([0.1] * 3, [0.1] * 3, (seeds, seeds), LEVEL)
        assert found is not None
        assert (found.estimate, found.low, found.high) == (0.0, 0.0, 0.0)
