"""One figure of one run and how far off it may be, from batches in the order of time.

Requests that follow each other are alike: they share a queue, a cache, a busy neighbour. Treating
them as independent gives intervals that are much too short. So a run is cut into a few consecutive
batches (Schmeiser 1982: 10 to 30 serve), and the spread of the batches says how far the whole may
be off. Where even batches follow each other, the variance is raised by (1 + r) / (1 - r), r being
their lag-1 correlation, which is what an AR(1) series asks for.
"""

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from scipy.special import bdtrik, ndtr

from loadgen.compare.metrics import Statistic, share_ends
from loadgen.compare.series import Ratio, Series, Values
from loadgen.runs.columns import Floats

LEAST_SAMPLES = 30
LEAST_BATCHES, MOST_BATCHES = 10, 30
MOST_CORRELATION = 0.9


class Estimate(Protocol):
    """`deviations` holds one figure per batch, with mean 0: how far it pulled the whole."""

    @property
    def value(self) -> float: ...

    @property
    def deviations(self) -> Floats: ...

    def bounds(self, t: float) -> tuple[float, float]:
        """The interval of `t` standard errors about the value; an end may be infinite."""
        ...


def estimate(series: Series, statistic: Statistic, batches: int) -> Estimate:
    """The figure that `statistic` asks of `series`, cut into so many batches."""
    if isinstance(series, Ratio):
        return (
            ProportionEstimate(series, batches) if series.counts else RatioEstimate(series, batches)
        )
    quantile = statistic.quantile
    if quantile is None:
        whole = np.ones_like(series.value)  # the mean as a ratio: sum over count
        return RatioEstimate(Ratio(series.value, whole, series.samples), batches)
    return QuantileEstimate(series, quantile, batches)


def batch_count(samples: int) -> int:
    """How many batches so many samples are cut into: both grow with the root of the samples."""
    return min(MOST_BATCHES, max(LEAST_BATCHES, round(2 * math.sqrt(samples))))


def _ratio(series: Ratio) -> float:
    return float(series.part.sum() / series.whole.sum())


def _pulled(series: Ratio, batches: int) -> Floats:
    """How far each batch pulls the ratio away from what it is, linearised."""
    part, whole = (_batch_sums(values, batches) for values in (series.part, series.whole))
    return np.asarray((part - _ratio(series) * whole) * batches / whole.sum())


def _batch_sums(values: Floats, batches: int) -> Floats:
    edges = np.arange(batches) * len(values) // batches
    return np.asarray(np.add.reduceat(values, edges))


def variance_of_mean(deviations: Floats) -> float:
    """Variance of the mean of batches that may follow each other."""
    return float(np.var(deviations, ddof=1)) / len(deviations) * _inflation(deviations)


def _inflation(deviations: Floats) -> float:
    """(1 + r) / (1 - r) with the lag-1 correlation r, never below 1.

    (1 + 3 r) / batches is added to r, by which it is estimated too low (Kendall 1954).
    """
    centred = deviations - deviations.mean()
    square = float(centred @ centred)
    if not square:
        return 1.0
    correlation = float(centred[1:] @ centred[:-1]) / square
    correlation += (1 + 3 * max(correlation, 0.0)) / len(centred)
    correlation = min(max(correlation, 0.0), MOST_CORRELATION)
    return (1 + correlation) / (1 - correlation)


@dataclass(frozen=True, slots=True)
class RatioEstimate:
    """A mean, a rate or a share: linearised, and on a logarithmic scale, since it is positive."""

    series: Ratio
    batches: int

    @property
    def value(self) -> float:
        return _ratio(self.series)

    @property
    def deviations(self) -> Floats:
        pulled = _pulled(self.series, self.batches)
        return np.asarray(pulled / self.value if self.value > 0 else pulled)

    def bounds(self, t: float) -> tuple[float, float]:
        if self.value <= 0:
            return self.value, self.value
        factor = math.exp(t * math.sqrt(variance_of_mean(self.deviations)))
        return self.value / factor, self.value * factor


@dataclass(frozen=True, slots=True)
class ProportionEstimate:
    """A share of counted things: Wilson's interval (1927) for as many samples as are independent.

    Zero of 40 is then not known to be zero. Bursts, which batches show, make the samples fewer.
    """

    series: Ratio
    batches: int

    @property
    def value(self) -> float:
        return _ratio(self.series)

    @property
    def deviations(self) -> Floats:
        return _pulled(self.series, self.batches)

    def bounds(self, t: float) -> tuple[float, float]:
        return share_ends(self.value, self._independent_samples(), t)

    def _independent_samples(self) -> float:
        share, samples = self.value, float(self.series.whole.sum())
        simple = share * (1 - share) / samples
        variance = variance_of_mean(self.deviations)
        return samples * min(1.0, simple / variance) if variance > 0 else samples


@dataclass(frozen=True, slots=True)
class QuantileEstimate:
    """A percentile, with the interval of order statistics (David and Nagaraja 2003, 7.1) for as
    many samples as are independent, as Woodruff (1952) carries it over to other samples: bounds
    are found for the share of values below the percentile, and read off the values. So it knows
    gaps in them, as between hits and misses, and is open where too few lie beyond the percentile.

    The binomial itself, not its normal limit: at 99 % that reaches beyond 1 for a p95 of fewer than
    126 samples where 104 suffice, and not far enough on the other side.
    """

    series: Values
    quantile: float
    batches: int

    @property
    def value(self) -> float:
        return float(np.quantile(self.series.value, self.quantile))

    @property
    def deviations(self) -> Floats:
        below = (self.series.value <= self.value).astype(np.float64)
        sizes = _batch_sums(np.ones_like(below), self.batches)
        shares = _batch_sums(below, self.batches) / sizes
        return np.asarray(shares.mean() - shares)  # more below it means that it is lower

    def bounds(self, t: float) -> tuple[float, float]:
        samples, tail = self._independent_samples(), float(ndtr(-t))
        low = float(bdtrik(tail, samples, self.quantile)) / samples
        high = (float(bdtrik(1 - tail, samples, self.quantile)) + 1) / samples
        none_below, none_above = (1 - self.quantile) ** samples, self.quantile**samples
        return (
            float(np.quantile(self.series.value, low)) if none_below < tail else -math.inf,
            float(np.quantile(self.series.value, high)) if none_above < tail else math.inf,
        )

    def _independent_samples(self) -> float:
        simple = self.quantile * (1 - self.quantile) / self.series.samples
        return self.series.samples * simple / max(simple, variance_of_mean(self.deviations))
