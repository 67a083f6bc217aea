"""Two sides set against each other: rows, judgements, remarks."""

import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from loadgen.compare.comparability import require_comparable
from loadgen.compare.estimate import LEAST_SAMPLES
from loadgen.compare.gate import BROKEN, PASSED, UNDECIDED, Kind, Limit
from loadgen.compare.interval import Interval
from loadgen.compare.metrics import DEFAULTS, Statistic, parse_statistic
from loadgen.compare.sides import Sides, exponential, scale_of
from loadgen.errors import UsageError

Verdict = Literal["better", "worse", "no evidence", "too little data", "no interval"]


@dataclass(frozen=True, slots=True)
class ComparedMetric:
    """`change` is relative to the base (0.1 is 10 % more); of a share the difference of shares
    (0.1 is ten points more). Its bounds are infinite where nothing is known of them."""

    statistic: Statistic
    base: float | None
    new: float | None
    samples: tuple[int, int]
    change: Interval | None
    verdict: Verdict


def make_row(sides: Sides, statistic: Statistic, level: float) -> ComparedMetric:
    """Set both sides against each other in one statistic."""
    base, new = sides.figures(statistic)
    change = relative_change(sides, statistic, level)
    verdict = _verdict(sides, statistic, change)
    if change is None:
        change = _without_interval(statistic, base, new)
    return ComparedMetric(statistic, base, new, sides.samples(statistic), change, verdict)


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
    return verdict_of(statistic, change)


def verdict_of(statistic: Statistic, change: Interval) -> Verdict:
    """What is to be made of a change by its interval alone."""
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


Outcome = Literal["passed", "broken", "undecided"]


@dataclass(frozen=True, slots=True)
class LimitJudgement:
    """`interval` is of what the limit is about, None where there is none."""

    limit: Limit
    interval: Interval | None
    outcome: Outcome
    reason: str


def judge(sides: Sides, limit: Limit, level: float) -> LimitJudgement:
    """A limit is broken where the whole interval lies beyond it; undecided where only the estimate
    does, where a side has too few samples or no interval, or where a run has a fault."""
    found = _of_data(sides, limit, level)
    faults = dict.fromkeys(fault.text for run in sides.runs for fault in run.faults)
    if not faults:
        return found
    reason = f"a run decides nothing: {'; '.join(faults)}"
    return replace(found, outcome="undecided", reason=reason)


def _of_data(sides: Sides, limit: Limit, level: float) -> LimitJudgement:
    statistic = limit.statistic
    if not sides.has_data(statistic):
        return LimitJudgement(limit, None, "undecided", "totals alone have no interval")
    least = min(sides.samples(statistic))
    if least < LEAST_SAMPLES:
        return LimitJudgement(
            limit, None, "undecided", f"{least} usable samples, {LEAST_SAMPLES} needed"
        )
    interval = _interval(sides, limit, level)
    if interval is None:
        return LimitJudgement(
            limit, None, "undecided", "a run has too few samples, or a figure of 0"
        )
    return _judge(limit, interval)


def _interval(sides: Sides, limit: Limit, level: float) -> Interval | None:
    if limit.kind == "value":
        return sides.new_alone(limit.statistic, level)
    if limit.kind == "difference":
        return sides.difference(limit.statistic, level, "plain")
    return relative_change(sides, limit.statistic, level)


def _judge(limit: Limit, interval: Interval) -> LimitJudgement:
    nearest = interval.low if limit.at_most else interval.high
    if _is_beyond(limit, nearest):
        return LimitJudgement(limit, interval, "broken", "the whole interval is beyond the limit")
    if _is_beyond(limit, interval.estimate):
        reason = (
            "the estimate is beyond the limit, its interval is not: make longer runs or repeats"
        )
        return LimitJudgement(limit, interval, "undecided", reason)
    return LimitJudgement(limit, interval, "passed", "")


def _is_beyond(limit: Limit, value: float) -> bool:
    return value > limit.bound if limit.at_most else value < limit.bound


def exit_code(judgements: Iterable[LimitJudgement]) -> int:
    """1 where a limit is broken, else 4 where one is undecided, else 0."""
    outcomes = {judgement.outcome for judgement in judgements}
    if "broken" in outcomes:
        return BROKEN
    return UNDECIDED if "undecided" in outcomes else PASSED


CONFIDENCE = 0.99


@dataclass(frozen=True, slots=True)
class Comparison:
    """`level` is that of each interval: 99 % for all of them together (Bonferroni)."""

    base: tuple[str, ...]
    new: tuple[str, ...]
    level: float
    rows: tuple[ComparedMetric, ...]
    judgements: tuple[LimitJudgement, ...]
    remarks: tuple[str, ...]

    @property
    def exit_code(self) -> int:
        """That of the gate, 0 without one."""
        return exit_code(self.judgements)


def compare(
    sides: Sides,
    statistics: Sequence[Statistic] = (),
    limits: Sequence[Limit] = (),
    vary: Collection[str] = ("target",),
) -> Comparison:
    """Compare in what is named, or in all that both have. Raises UsageError where the sides are
    not comparable, or one lacks what was named."""
    unknown = require_comparable(sides.base, sides.new, vary)
    named = tuple(dict.fromkeys([*(limit.statistic for limit in limits), *statistics]))
    _require(sides, named)
    shown = named or tuple(_common(sides))
    if not shown:
        raise UsageError(
            "no metric has samples on both sides: give runs with requests, in files of the same"
            " kind"
        )
    level = 1 - (1 - CONFIDENCE) / _intervals(shown, limits)
    return Comparison(
        base=tuple(run.name for run in sides.base),
        new=tuple(run.name for run in sides.new),
        level=level,
        rows=tuple(make_row(sides, statistic, level) for statistic in shown),
        judgements=tuple(judge(sides, limit, level) for limit in limits),
        remarks=(*unknown, *_remarks(sides, shown), *_on_new_alone(sides, limits)),
    )


def _intervals(shown: Sequence[Statistic], limits: Sequence[Limit]) -> int:
    """How many different ones are made. A row has that of the change, which a relative limit on the
    same statistic shares; a limit in the metric's unit or on the new side alone has its own."""
    rows: set[tuple[Statistic, Kind]] = {(statistic, "relative") for statistic in shown}
    return len(rows | {(limit.statistic, limit.needs) for limit in limits})


def _require(sides: Sides, named: Sequence[Statistic]) -> None:
    for statistic in named:
        for run in sides.runs:
            if not run.has(statistic):
                known = ", ".join(run.metrics)
                raise UsageError(f"{run.name} does not tell {statistic.name}: it has {known}")


def _common(sides: Sides) -> Iterator[Statistic]:
    for name in DEFAULTS:
        statistic = parse_statistic(name)
        if all(run.has(statistic) for run in sides.runs) and any(sides.samples(statistic)):
            yield statistic


def _remarks(sides: Sides, shown: Sequence[Statistic]) -> Iterator[str]:
    for run in sides.runs:
        for remark in run.remarks:
            yield f"{run.name}: {remark}"
    if len({run.machine for run in sides.runs if run.machine}) > 1:
        yield "the runs come from different machines"
    if any(statistic.metric.name == "itl_ms" for statistic in shown) and any(
        "itl_ms" in run.series for run in sides.runs
    ):
        yield "itl_ms is of each request's mean gap: single gaps are not kept"
    yield from _on_spread(sides, shown)


def _on_new_alone(sides: Sides, limits: Sequence[Limit]) -> Iterator[str]:
    """Where the spread of a single new run beside several of the base comes from."""
    if len(sides.new) > 1 or sides.is_single_pair:
        return
    for statistic in dict.fromkeys(each.statistic for each in limits if each.kind == "value"):
        runs = f"{len(sides.base)} runs of the base"
        if sides.noise is not None and sides.noise.spread(statistic, "log"):
            runs = f"{len(sides.noise.runs)} identical runs of {sides.noise.target}"
        yield f"{statistic.name} of the new run alone includes the spread between {runs}"


def _on_spread(sides: Sides, shown: Sequence[Statistic]) -> Iterator[str]:
    if not sides.is_single_pair or not any(sides.has_data(statistic) for statistic in shown):
        return
    if sides.noise is None:
        yield (
            "one run on each side: how much identical runs differ here is not known and not in the"
            " intervals; measure it with `kvswarm noise`, or give repeats"
        )
        return
    runs = len(sides.noise.runs)
    yield f"intervals include the spread between {runs} identical runs of {sides.noise.target}"
    missing = [each.name for each in shown if sides.noise.spread(each, "log") is None]
    if missing:
        yield f"the spread between runs is not known of {', '.join(missing)}"
