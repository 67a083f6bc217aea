"""Two sides set against each other: rows, judgements, remarks."""

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from loadgen.compare.comparability import differences, require_comparable
from loadgen.compare.gate import CONFIDENCE, Kind, Limit
from loadgen.compare.interval import Interval
from loadgen.compare.judgement import (
    USUAL_SPREAD,
    LimitJudgement,
    exit_code,
    judge,
    knows_spread,
    relative_change,
    spread_that_explains,
)
from loadgen.compare.metrics import DEFAULTS, METRICS, Statistic, parse_statistic
from loadgen.compare.pairs import LEAST_COMMON, Agreement, common_rows
from loadgen.compare.series import Ratio
from loadgen.compare.sides import Sides, scale_of
from loadgen.errors import UsageError

Verdict = Literal["better", "worse", "single runs", "no evidence", "too little data", "no interval"]
COMPUTED = "computed_tokens"
"""Prompt tokens that came from no cache."""


@dataclass(frozen=True, slots=True)
class ExactCount:
    """A sum over the `requests` that both sides sent."""

    name: str
    base: int
    new: int
    requests: int


@dataclass(frozen=True, slots=True)
class ComparedMetric:
    """`change` is relative to the base (0.1 is 10 % more); of a share the difference of shares
    (0.1 is ten points more). Its bounds are infinite where nothing is known of them. `explained_by`
    is the spread between identical runs that would explain it, where none is known."""

    statistic: Statistic
    base: float | None
    new: float | None
    samples: tuple[int, int]
    change: Interval | None
    verdict: Verdict
    agreement: Agreement | None = None
    explained_by: float | None = None


def make_row(sides: Sides, statistic: Statistic, level: float) -> ComparedMetric:
    """Set both sides against each other in one statistic."""
    paired = sides.paired(statistic, scale_of(statistic))
    base, new = sides.figures(statistic)
    change = relative_change(sides, statistic, level)
    verdict = _verdict(sides, statistic, change)
    explained_by = None
    if change is not None and verdict in ("better", "worse"):
        explained_by = _explained_by(sides, statistic, change)
    if explained_by is not None and explained_by < USUAL_SPREAD:
        verdict = "single runs"
    return ComparedMetric(
        statistic,
        base,
        new,
        sides.samples(statistic) if paired is None else paired.samples,
        _without_interval(statistic, base, new) if change is None else change,
        verdict,
        sides.agreement(statistic),
        explained_by,
    )


def _explained_by(sides: Sides, statistic: Statistic, change: Interval) -> float | None:
    if knows_spread(sides, statistic):
        return None
    near = change.low if change.estimate > 0 else change.high
    distance = abs(math.log1p(change.estimate)) if change.estimate > -1 else math.inf
    return spread_that_explains(distance, distance - abs(math.log1p(near)))


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


CONFIDENCE_OF_ROWS = 0.95


@dataclass(frozen=True, slots=True)
class Comparison:
    """`level` is that of a limit's interval: 99 % for all together (Bonferroni); `row_level` that
    of each row's by itself. `counts` are exact, of the requests of both sides."""

    base: tuple[str, ...]
    new: tuple[str, ...]
    level: float
    row_level: float
    counts: tuple[ExactCount, ...]
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
    needs_proof: bool = False,
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
        row_level=CONFIDENCE_OF_ROWS,
        counts=tuple(exact_counts(sides)),
        rows=tuple(make_row(sides, statistic, CONFIDENCE_OF_ROWS) for statistic in shown),
        judgements=tuple(judge(sides, limit, level, needs_proof) for limit in limits),
        remarks=(*unknown, *_remarks(sides, shown), *_on_new_alone(sides, limits)),
    )


def _intervals(shown: Sequence[Statistic], limits: Sequence[Limit]) -> int:
    """How many different ones are made. A row has that of the change, which a relative limit on the
    same statistic shares; a limit in the metric's unit or on the new side alone has its own."""
    rows: set[tuple[Statistic, Kind]] = {(statistic, "relative") for statistic in shown}
    return len(rows | {(limit.statistic, limit.needs) for limit in limits})


def exact_counts(sides: Sides) -> Iterator[ExactCount]:
    """What both sides counted of the same requests, which needs no interval: of the catalogue's
    shares of tokens the part and the rest."""
    if not sides.send_the_same:
        return
    for metric in METRICS.values():
        if metric.form != "share" or not metric.whole.endswith("_tokens"):
            continue
        pair = [run.series.get(metric.name) for run in sides.runs]
        told = [each for each in pair if isinstance(each, Ratio) and each.marks is not None]
        if len(told) == len(pair) and all(each.samples for each in told):
            base, new = common_rows(told[0], told[1])
            before, after = int(base.part.sum()), int(new.part.sum())
            rest = [int(each.whole.sum() - each.part.sum()) for each in (base, new)]
            yield ExactCount(COMPUTED, rest[0], rest[1], base.samples)
            yield ExactCount(metric.part, before, after, base.samples)


def _require(sides: Sides, named: Sequence[Statistic]) -> None:
    for statistic in named:
        for run in sides.runs:
            if not run.has(statistic):
                if statistic.metric.source == "gaps":
                    raise UsageError(
                        f"{statistic.name} is of single gaps, which {run.name} does not keep: give"
                        f" itl_mean_ms.{statistic.of_values}, of each request's mean gap"
                    )
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
    known = [run.versions for run in sides.runs if run.versions]
    if found := {str(each) for run in known[1:] for each in differences(known[0], run)}:
        yield f"the runs differ in versions: {'; '.join(sorted(found))}"
    if sides.send_the_same:
        base, new = (len(run.prompts) for run in sides.runs)
        both = len(sides.base[0].prompts.keys() & sides.new[0].prompts.keys())
        which = "the same requests: they" if both == base == new else f"{both:,} requests: these"
        yield f"both sides sent {which} are compared pair by pair"
    elif sides.is_single_pair:
        first, second = (run.prompts for run in sides.runs)
        both, most = len(first.items() & second.items()), max(len(first), len(second))
        if 0 < both == len(first.keys() & second.keys()) < LEAST_COMMON * most:
            told = f"only {both:,} of {most:,} requests are on both sides"
            yield f"{told}: a change is also that of what was asked for"
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
    if sides.shows_spread or not any(sides.has_data(statistic) for statistic in shown):
        return
    if sides.noise is None:
        few = "one run on each side" if sides.is_single_pair else "too few repeats"
        yield (
            f"{few}: how much identical runs differ here is not known and not in the"
            " intervals; measure it with `kvswarm noise`, or give repeats"
        )
        return
    runs = len(sides.noise.runs)
    whose = sides.noise.target
    if any(run.machine and run.machine != sides.noise.machine for run in sides.runs):
        whose += " on another machine"
    yield f"intervals include the spread between {runs} identical runs of {whose}"
    missing = [each.name for each in shown if sides.noise.spread(each, "log") is None]
    if missing:
        yield f"the spread between runs is not known of {', '.join(missing)}"
