"""What becomes of one limit, and of the gate."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

from loadgen.compare.estimate import LEAST_SAMPLES
from loadgen.compare.gate import BROKEN, PASSED, UNDECIDED, Limit
from loadgen.compare.interval import Interval
from loadgen.compare.row import relative_change
from loadgen.compare.sides import Sides

Outcome = Literal["passed", "broken", "undecided"]


@dataclass(frozen=True, slots=True)
class Judgement:
    """`interval` is of what the limit is about, None where there is none."""

    limit: Limit
    interval: Interval | None
    outcome: Outcome
    reason: str


def judge(sides: Sides, limit: Limit, level: float) -> Judgement:
    """A limit is broken where the whole interval lies beyond it; undecided where only the estimate
    does, where a side has too few samples or no interval, or where a run has a fault."""
    found = _of_data(sides, limit, level)
    faults = dict.fromkeys(fault.text for run in sides.runs for fault in run.faults)
    if not faults:
        return found
    reason = f"a run decides nothing: {'; '.join(faults)}"
    return replace(found, outcome="undecided", reason=reason)


def _of_data(sides: Sides, limit: Limit, level: float) -> Judgement:
    statistic = limit.statistic
    if not sides.has_data(statistic):
        return Judgement(limit, None, "undecided", "totals alone have no interval")
    least = min(sides.samples(statistic))
    if least < LEAST_SAMPLES:
        return Judgement(
            limit, None, "undecided", f"{least} usable samples, {LEAST_SAMPLES} needed"
        )
    interval = _interval(sides, limit, level)
    if interval is None:
        return Judgement(limit, None, "undecided", "a run has too few samples, or a figure of 0")
    return _judge(limit, interval)


def _interval(sides: Sides, limit: Limit, level: float) -> Interval | None:
    if limit.kind == "value":
        return sides.new_alone(limit.statistic, level)
    if limit.kind == "difference":
        return sides.difference(limit.statistic, level, "plain")
    return relative_change(sides, limit.statistic, level)


def _judge(limit: Limit, interval: Interval) -> Judgement:
    nearest = interval.low if limit.at_most else interval.high
    if _is_beyond(limit, nearest):
        return Judgement(limit, interval, "broken", "the whole interval is beyond the limit")
    if _is_beyond(limit, interval.estimate):
        reason = (
            "the estimate is beyond the limit, its interval is not: make longer runs or repeats"
        )
        return Judgement(limit, interval, "undecided", reason)
    return Judgement(limit, interval, "passed", "")


def _is_beyond(limit: Limit, value: float) -> bool:
    return value > limit.bound if limit.at_most else value < limit.bound


def exit_code(judgements: Iterable[Judgement]) -> int:
    """1 where a limit is broken, else 4 where one is undecided, else 0."""
    outcomes = {judgement.outcome for judgement in judgements}
    if "broken" in outcomes:
        return BROKEN
    return UNDECIDED if "undecided" in outcomes else PASSED
