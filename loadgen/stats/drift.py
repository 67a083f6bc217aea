"""Whether a series drifts, and whether its front differs from the rest, by the means of slices.

Values that follow each other are alike, so the spread is taken from means of ten long slices, by
the differences of neighbours (von Neumann 1941), which a drift hardly widens.
"""

import math
from collections.abc import Sequence
from itertools import accumulate, pairwise

SLICES = 10
CRITICAL = 1.86
"""Of ten independent means, one series in a hundred has a larger `_bridge` (simulated, 400,000)."""
LEAST_CHANGE = 0.05
"""Of the mean, by which the later half must differ from the earlier one to be called a drift."""
LEAST_DEVIATIONS = 4.0


def drifts(values: Sequence[float]) -> bool:
    """Whether the mean moved on the way: the largest cumulative sum of deviations is beyond chance
    (Schruben 1982), and the later half differs from the earlier one by a twentieth or more."""
    means = slice_means(values)
    mean = math.fsum(means) / SLICES
    half = SLICES // 2
    change = math.fsum(means[half:]) - math.fsum(means[:half])
    if abs(change) / half <= LEAST_CHANGE * abs(mean):
        return False
    deviation = math.sqrt(_variance(means))
    return _bridge([each - mean for each in means]) > CRITICAL * deviation


def front_differs(values: Sequence[float], front: int) -> bool:
    """Whether the mean of the first `front` values is four standard errors from that of the rest,
    or more."""
    if not front:
        return False
    early, late = values[:front], values[front:]
    apart = math.fsum(early) / len(early) - math.fsum(late) / len(late)
    variance = _variance(slice_means(late)) * len(late) / SLICES
    error = math.sqrt(variance * (1 / len(early) + 1 / len(late)))
    return abs(apart) > LEAST_DEVIATIONS * error


def slice_means(values: Sequence[float]) -> list[float]:
    """Of `SLICES` slices of the same length, but for one value; at least as many values."""
    edges = [at * len(values) // SLICES for at in range(SLICES + 1)]
    return [math.fsum(values[low:high]) / (high - low) for low, high in pairwise(edges)]


def _bridge(deviations: Sequence[float]) -> float:
    return max(map(abs, accumulate(deviations))) / math.sqrt(len(deviations))


def _variance(means: Sequence[float]) -> float:
    """Of a slice's mean."""
    return math.fsum((b - a) ** 2 for a, b in pairwise(means)) / (2 * (len(means) - 1))
