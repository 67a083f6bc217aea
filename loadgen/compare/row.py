"""One metric of a comparison: both figures, the difference, what is to be made of it."""

import math
from dataclasses import dataclass
from typing import Literal

from loadgen.compare.interval import Interval
from loadgen.compare.metrics import Statistic
from loadgen.compare.sides import Sides, exponential, scale_of

Verdict = Literal["better", "worse", "no evidence", "too little data", "no interval"]


@dataclass(frozen=True, slots=True)
class Row:
    """`change` is relative to the base (0.1 is 10 % more); of a share the difference of shares
    (0.1 is ten points more). Its bounds are infinite where nothing is known of them."""

    statistic: Statistic
    base: float | None
    new: float | None
    samples: tuple[int, int]
    change: Interval | None
    verdict: Verdict


def make_row(sides: Sides, statistic: Statistic, level: float) -> Row:
    """Set both sides against each other in one statistic."""
    base, new = sides.figures(statistic)
    change = relative_change(sides, statistic, level)
    verdict = _verdict(sides, statistic, change)
    if change is None:
        change = _without_interval(statistic, base, new)
    return Row(statistic, base, new, sides.samples(statistic), change, verdict)


def relative_change(sides: Sides, statistic: Statistic, level: float) -> Interval | None:
    """The difference as a row shows it, with its interval; None where there is none."""
    scale = scale_of(statistic)
    interval = sides.difference(statistic, level, scale)
    if interval is None or scale == "plain":
        return interval
    return interval.through(lambda value: exponential(value) - 1)


def _verdict(sides: Sides, statistic: Statistic, change: Interval | None) -> Verdict:
    if not sides.has_data(statistic):
        return "no interval"
    if change is None or _says_nothing(statistic, change):
        return "too little data"
    if change.low <= 0 <= change.high:
        return "no evidence"
    return "better" if (change.low > 0) == (statistic.metric.better == "higher") else "worse"


def _says_nothing(statistic: Statistic, change: Interval) -> bool:
    """A factor cannot be below 0, so that -100 % is where an open interval ends."""
    nowhere = -math.inf if scale_of(statistic) == "plain" else -1.0
    return change.low <= nowhere and math.isinf(change.high)


def _without_interval(
    statistic: Statistic, base: float | None, new: float | None
) -> Interval | None:
    if base is None or new is None:
        return None
    if scale_of(statistic) == "plain":
        return Interval(new - base, -math.inf, math.inf)
    return Interval(new / base - 1, -math.inf, math.inf) if base > 0 else None
