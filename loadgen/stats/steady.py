"""Where the warm-up of a run ends, and whether it ever settled."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

BATCH = 5
LEAST_BATCHES = 10
LATEST_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class Steady:
    """`warm_up` values at the front are better left out.

    `settled` is False where even so the rest may still be drifting, None where there are too few
    values to tell.
    """

    warm_up: int
    settled: bool | None


def steady_from(values: Sequence[float]) -> Steady:
    """Cut off the front of a series so that the mean of the rest is known best.

    MSER-5 (White, Simulation 69(6), 1997): of means of five neighbours the first d are left out,
    where d makes sum((x - mean)^2) / (n - d)^2 over the others smallest. A smallest value that is
    reached in the later half of the series says that it has not settled (White and Spratt 2000).
    """
    batches = _batches(values)
    if len(batches) < LEAST_BATCHES:
        return Steady(0, None)
    cut = _least_error(batches, len(batches))
    if cut > LATEST_SHARE * len(batches):
        return Steady(0, False)
    return Steady(cut * BATCH, True)


def front_of(values: Sequence[float]) -> int:
    """As many values at the front as `steady_from` would leave out, were it bound to find a warm-up
    in the first half."""
    batches = _batches(values)
    return _least_error(batches, math.floor(LATEST_SHARE * len(batches))) * BATCH


def _batches(values: Sequence[float]) -> list[float]:
    return [sum(values[at : at + BATCH]) / BATCH for at in range(0, len(values) - 4, BATCH)]


def _least_error(batches: Sequence[float], latest: int) -> int:
    """The d above, at most `latest`; from the end on, so that one pass is enough (Welford's running
    variance)."""
    mean, squares = 0.0, 0.0
    best, best_error = 0, float("inf")
    for count, value in enumerate(reversed(batches), 1):
        off = value - mean
        mean += off / count
        squares += off * (value - mean)
        # The last few are no evidence: five values that are alike by chance have no spread.
        is_evidence = count >= BATCH and len(batches) - count <= latest
        if is_evidence and squares / count**2 <= best_error:
            best, best_error = len(batches) - count, squares / count**2
    return best
