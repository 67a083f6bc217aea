"""Confidence intervals of what differs between two sides, each of one run or of several.

Square-and-add (Zou and Donner 2008, with correlation Zou 2007): an interval for a weighted sum is
put together from an interval of each term. So terms may have intervals that are not symmetric, and
each source of error brings its own quantile of Student's t. Batch j of one run is set against
batch j of the other, so that what the same stream of requests does to both cancels out; where they
have nothing in common, their correlation is about 0.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Literal

import numpy as np
from scipy.stats import t as student_t

from loadgen.compare.estimate import Estimate
from loadgen.runs.columns import Floats

Scale = Literal["log", "plain"]

ROUNDING = 1e-12
"""Of the largest figure: what least squares makes of equal ones."""


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate between its bounds; a bound may be infinite."""

    estimate: float
    low: float
    high: float

    def through(self, transform: Callable[[float], float]) -> "Interval":
        """The same on another scale; `transform` must not decrease."""
        return Interval(transform(self.estimate), transform(self.low), transform(self.high))

    def widened(self, other: "Interval") -> "Interval":
        """Reaches as far as either of both on each side."""
        return Interval(self.estimate, min(self.low, other.low), max(self.high, other.high))

    def to_json(self) -> dict[str, float | None]:
        """JSON has no infinity: an open end is null."""
        parts = asdict(self).items()
        return {name: value if math.isfinite(value) else None for name, value in parts}


@dataclass(frozen=True, slots=True)
class RunSpread:
    """How much runs differ from each other beyond what each of them can know: a standard deviation
    on the scale of the contrast, from so many runs less one."""

    deviation: float
    freedom: int


def quantile_of_t(level: float, freedom: float) -> float:
    """Of a two-sided interval: 99 % and many degrees of freedom give 2.58."""
    return float(student_t.ppf(0.5 + level / 2, freedom))


def within_runs(
    estimates: Sequence[Estimate],
    weights: Sequence[float],
    level: float,
    scale: Scale,
    spread: RunSpread | None = None,
) -> Interval:
    """The sum of weight x figure over runs, from what happened inside them.

    `spread` adds what runs differ by beyond that.
    """
    freedom = len(estimates[0].deviations) - 1
    between = 0.0 if spread is None else _between(weights, level, spread)
    return _square_and_add(estimates, weights, quantile_of_t(level, freedom), scale, between)


def error_within(estimates: Sequence[Estimate], weights: Sequence[float], scale: Scale) -> float:
    """One standard error of such a sum; the mean of both directions. May be infinite."""
    interval = _square_and_add(estimates, weights, 1.0, scale, 0.0)
    return (interval.high - interval.low) / 2


def _square_and_add(
    estimates: Sequence[Estimate],
    weights: Sequence[float],
    t: float,
    scale: Scale,
    between: float,
) -> Interval:
    weight = np.asarray(weights)
    middle = [on_scale(each.value, scale) for each in estimates]
    lower, upper = zip(*(each.bounds(t) for each in estimates), strict=True)
    below, above = _distances(middle, lower, scale), _distances(middle, upper, scale)
    correlation = _correlations(np.asarray([each.deviations for each in estimates]))
    total = float(weight @ np.asarray(middle))
    down = _reach(weight, np.where(weight > 0, below, above), correlation, between)
    up = _reach(weight, np.where(weight > 0, above, below), correlation, between)
    return Interval(total, total - down, total + up)


def between_repeats(
    base: Sequence[float],
    new: Sequence[float],
    seeds: tuple[Sequence[str], Sequence[str]],
    level: float,
) -> Interval | None:
    """New less base from nothing but each run's figure; None for fewer than three runs.

    An additive model, figure = seed + side, by least squares: with one seed it is the t-test with
    pooled variance, with as many seeds as runs on a side the paired one. Seeds that only one side
    has say nothing of the other, and are left out. None where no degree of freedom is left.

    A pair of runs for each seed is one figure here, though its requests tell more. Weights by what
    is inside each pair (DerSimonian and Laird 1986 or Paule and Mandel 1982, with the interval of
    Hartung and Knapp 2001) change nothing where pairs know as much as each other, and where not
    made up to 21 % false alarms in simulated runs of two to eight seeds.
    """
    figures = np.asarray([*base, *new])
    design = _design(len(base), len(new), [*seeds[0], *seeds[1]])
    freedom = len(figures) - design.shape[1]
    if freedom < 1 or not np.isfinite(figures).all():
        return None
    solved = np.linalg.lstsq(design, figures, rcond=None)[0]
    residual = figures - design @ solved
    variance = float(residual @ residual) / freedom
    factor = float(np.linalg.inv(design.T @ design)[-1, -1])
    rounding = ROUNDING * float(np.abs(figures).max())
    difference = _without(rounding, float(solved[-1]))
    half = quantile_of_t(level, freedom) * _without(rounding, math.sqrt(variance * factor))
    return Interval(difference, difference - half, difference + half)


def degrees_left(seeds: tuple[Sequence[str], Sequence[str]]) -> int:
    """Of the model of `between_repeats`: 0 where repeats show nothing of how runs differ."""
    base, new = seeds
    names = [*base, *new]
    return len(names) - int(_design(len(base), len(new), names).shape[1])


def _design(base: int, new: int, names: Sequence[str]) -> Floats:
    side = [0.0] * base + [1.0] * new
    columns = [[float(name == seed) for name in names] for seed in sorted(set(names))]
    design = np.asarray([*columns, side]).T
    if np.linalg.matrix_rank(design) == design.shape[1]:
        return design
    return np.asarray([[1.0] * len(side), side]).T


def _without(rounding: float, value: float) -> float:
    return value if abs(value) > rounding else 0.0


def mean_of_repeats(
    figures: Sequence[float], level: float, others: Sequence[float] = ()
) -> Interval | None:
    """One side's mean, with the variance of a run from those figures; of a single one from
    `others`, which are taken to vary as much. None where neither shows it."""
    varying = figures if len(figures) > 1 else others
    if len(varying) < 2:
        return None
    mean = float(np.mean(figures))
    error = float(np.std(varying, ddof=1)) / math.sqrt(len(figures))
    half = quantile_of_t(level, len(varying) - 1) * error
    return Interval(mean, mean - half, mean + half)


def on_scale(value: float, scale: Scale) -> float:
    """The value or its logarithm, that of 0 and less being -inf."""
    if scale == "plain":
        return value
    return math.log(value) if value > 0 else -math.inf


def _distances(middle: Sequence[float], ends: Sequence[float], scale: Scale) -> Floats:
    found = np.asarray(middle) - np.asarray([on_scale(end, scale) for end in ends])
    return np.asarray(np.abs(found))


def _between(weights: Sequence[float], level: float, spread: RunSpread) -> float:
    t = quantile_of_t(level, spread.freedom)
    return (t * spread.deviation) ** 2 * sum(weight * weight for weight in weights)


def _correlations(deviations: Floats) -> Floats:
    """Between runs; those whose batches do not vary go with none."""
    norms = np.sqrt((deviations**2).sum(axis=1))
    norms[norms == 0] = math.inf
    correlations = (deviations @ deviations.T) / np.outer(norms, norms)
    np.fill_diagonal(correlations, 1.0)
    return np.asarray(correlations)


def _reach(weight: Floats, distances: Floats, correlation: Floats, between: float) -> float:
    if not np.isfinite(distances).all():
        return math.inf
    weighted = weight * distances
    return math.sqrt(max(0.0, float(weighted @ correlation @ weighted)) + between)
