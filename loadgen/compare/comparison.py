"""Two sides set against each other: rows, judgements, remarks."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from loadgen.compare.comparability import require_comparable
from loadgen.compare.gate import Kind, Limit
from loadgen.compare.judgement import Judgement, exit_code, judge
from loadgen.compare.metrics import DEFAULTS, Statistic, parse_statistic
from loadgen.compare.row import Row, make_row
from loadgen.compare.sides import Sides
from loadgen.errors import UsageError

CONFIDENCE = 0.99


@dataclass(frozen=True, slots=True)
class Comparison:
    """`level` is that of each interval: 99 % for all of them together (Bonferroni)."""

    base: tuple[str, ...]
    new: tuple[str, ...]
    level: float
    rows: tuple[Row, ...]
    judgements: tuple[Judgement, ...]
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
