"""A straight line through points that does not follow outliers."""

import math
from dataclasses import dataclass

import numpy as np

from dashboards.figures.marks import thinned
from loadgen.runs.columns import Floats

LEAST_POINTS = 10
LEAST_SPREAD = 1.2
"""Lengths must differ by this factor, or a slope would say nothing."""
_MOST_POINTS = 800
_Z95 = 1.96


@dataclass(frozen=True, slots=True)
class LineFit:
    """`y = intercept + slope * x`, with the 95 % interval of the slope. `explained` is the share of
    the median deviation of y that the line takes away: 1 where all points lie on it."""

    slope: float
    low: float
    high: float
    intercept: float
    explained: float

    @property
    def is_certain(self) -> bool:
        """Whether the interval leaves 0 out."""
        return self.low > 0 or self.high < 0


def fit_line(x: Floats, y: Floats) -> LineFit | None:
    """The median of the slopes between all pairs of points (Theil 1950), its interval after Sen
    (1968), who counts equal x. None for too few points or x that are too alike. NaN are left out;
    of many points evenly many are used."""
    known = ~np.isnan(x) & ~np.isnan(y)
    x, y = x[known], y[known]
    order = np.argsort(x, kind="stable")[thinned(len(x), _MOST_POINTS)]
    x, y = x[order], y[order]
    if len(x) < LEAST_POINTS:
        return None
    shortest, longest = (float(each) for each in np.quantile(x, (0.05, 0.95)))
    if longest <= LEAST_SPREAD * max(shortest, 1.0):
        return None
    slopes = _slopes(x, y)
    ends = _interval(slopes, x)
    if ends is None:
        return None
    slope, (low, high) = float(np.median(slopes)), ends
    intercept = float(np.median(y - slope * x))
    spread = float(np.median(np.abs(y - np.median(y))))
    left = float(np.median(np.abs(y - slope * x - intercept)))
    return LineFit(slope, low, high, intercept, 1 - left / spread if spread else 0.0)


def _slopes(x: Floats, y: Floats) -> Floats:
    first, second = np.triu_indices(len(x), 1)
    run = x[second] - x[first]
    apart = run > 0
    return np.sort((y[second] - y[first])[apart] / run[apart])


def _interval(slopes: Floats, x: Floats) -> tuple[float, float] | None:
    """As many slopes beyond one end as beyond the other; None where it is open."""
    _, ties = np.unique(x, return_counts=True)
    sizes = np.asarray([len(x), *ties], dtype=np.float64)
    terms = sizes * (sizes - 1) * (2 * sizes + 5) / 18
    half = _Z95 * math.sqrt(terms[0] - terms[1:].sum())
    beyond = math.floor((len(slopes) - half) / 2) - 1
    return None if beyond < 0 else (float(slopes[beyond]), float(slopes[-1 - beyond]))
