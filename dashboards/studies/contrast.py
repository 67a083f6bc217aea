"""Sets of cells set against each other in one metric, by the rules of `kvswarm compare`."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from dashboards.report.wording import listed
from dashboards.studies.answer import MarkdownTable
from dashboards.studies.cell import Cells
from dashboards.studies.wording import change, duration, factor, times, unit_of
from loadgen.compare.comparison import CONFIDENCE_OF_ROWS, ComparedMetric, make_row, verdict_of
from loadgen.compare.estimate import estimate
from loadgen.compare.interval import between_repeats, on_scale
from loadgen.compare.metrics import Statistic, parse_statistic
from loadgen.compare.run import ComparedRun
from loadgen.compare.run_reader import read_run
from loadgen.compare.sides import Sides, exponential, scale_of
from loadgen.compare.wording import agreement

MEAN = "ttft_ms.mean"
LEVEL = CONFIDENCE_OF_ROWS
COUNTED = frozenset(("cached_share",))
"""Metrics that no late client changes."""
LEAST_RUNS, LEAST_PAIRS, LEAST_SAMPLES = 4, 2, 5
"""What must be left of repeats on both sides together, and the pairs of runs that decide by how
they differ alone, with the requests of each run in them."""


@dataclass(frozen=True, slots=True)
class Contrast:
    """What `new` has that `base` has not; `row` is None where a side has no sound cell."""

    base: str
    new: str
    row: ComparedMetric | None

    @property
    def verdict(self) -> str:
        """better, worse, no evidence, too little data, or not measured."""
        return self.row.verdict if self.row is not None else "not measured"

    @property
    def factor(self) -> float | None:
        """`new` over `base`."""
        if self.row is None or not self.row.base or self.row.new is None:
            return None
        return self.row.new / self.row.base

    def said(self, better: str, worse: str, nothing: str, unknown: str) -> str:
        """One of these by the verdict: the first two have a `{}` for `2.4 times`, the last for the
        verdict itself."""
        if self.verdict == "better" and self.factor:
            return better.format(times(1 / self.factor))
        if self.verdict == "worse" and self.factor:
            return worse.format(times(self.factor))
        return nothing if self.verdict == "no evidence" else unknown.format(self.verdict)

    @property
    def words(self) -> str:
        """`812 ms a and 411 ms b (-49 %, -55 % to -40 %)`, with what is to be thought of it."""
        if self.row is None or self.row.base is None or self.row.new is None:
            return f"{self.base} against {self.new} was not measured"
        base, new, change, interval, verdict = self.columns
        within = f"{change}, {interval}" if interval else change
        text = f"{base} {self.base} and {new} {self.new} ({within})"
        return text if verdict in ("better", "worse") else f"{text}: {verdict}"

    @property
    def estimated(self) -> str:
        """`-40 %, lower in 3 of 3 runs, 95 % interval -67 % to +6 %`; empty where not known."""
        row = self.row
        if row is None or not self._changes:
            return ""
        low, middle, high = self._changes
        is_known = self.verdict not in ("too little data", "no interval")
        parts = [middle, agreement(row), f"95 % interval {low} to {high}" if is_known else ""]
        return ", ".join(part for part in parts if part)

    @property
    def columns(self) -> tuple[str, str, str, str, str]:
        """Both figures, the change, its interval and the verdict; empty where not known."""
        row = self.row
        if row is None or row.base is None or row.new is None:
            return "", "", "", "", self.verdict
        base, new = (_shown(row.statistic, value) for value in (row.base, row.new))
        if not self._changes:
            return base, new, "", "", self.verdict
        low, middle, high = self._changes
        known = self.verdict in ("better", "worse", "no evidence")
        return base, new, middle, f"{low} to {high}" if known else "", self.verdict

    @property
    def _changes(self) -> list[str]:
        """The interval's low end, the estimate and the high end; empty where not known."""
        row = self.row
        if row is None or row.change is None:
            return []
        ends = row.change.low, row.change.estimate, row.change.high
        is_share = row.statistic.metric.form == "share"
        return [f"{100 * part:+.1f} points" if is_share else change(part) for part in ends]


def contrast(base: Cells, new: Cells, names: tuple[str, str], metric: str = MEAN) -> Contrast:
    """`metric` as in `kvswarm compare` (`ttft_ms.mean`); repeats of a side are used together.
    Raises UsageError for a run that cannot be read."""
    usable = [side.counted if metric in COUNTED else side.sound for side in (base, new)]
    sides = [[read_run(cell.run) for cell in side] for side in usable]
    return contrast_runs(sides[0], sides[1], names, metric, max(len(base), len(new)))


def contrast_runs(
    base: Sequence[ComparedRun],
    new: Sequence[ComparedRun],
    names: tuple[str, str],
    metric: str = MEAN,
    made: int = 1,
) -> Contrast:
    """The same of runs, or of parts of runs, that were read before. `made` is how many there were
    of a side before those that decide nothing were left out."""
    statistic = parse_statistic(metric)
    told = [[run for run in side if run.has(statistic)] for side in (base, new)]
    if not all(told):
        return Contrast(*names, row=None)
    sides = _paired(told[0], told[1])
    row = make_row(sides, statistic, LEVEL)
    if row.verdict == "single runs" and row.change is not None:
        row = replace(row, verdict=verdict_of(statistic, row.change))
    if row.verdict == "too little data":
        row = _by_runs(sides, row)
    elif made > 1 and len(sides.runs) < LEAST_RUNS:
        row = replace(row, verdict="too little data")
    return Contrast(*names, row=row)


def _paired(base: Sequence[ComparedRun], new: Sequence[ComparedRun]) -> Sides:
    """The runs of seeds that both sides have, so that figures and interval are of the same ones;
    all of them where there is no such seed. Two pairs leave one degree of freedom, so that they are
    taken for four runs that have nothing in common: that asks for more, and knows more."""
    shared = {run.seed for run in base} & {run.seed for run in new}
    kept = [[run for run in side if run.seed in shared or not shared] for side in (base, new)]
    if len(kept[0]) == len(kept[1]) == 2:
        kept = [
            [replace(run, facts={"seed": f"{run.seed} {name}"}) for run in side]
            for side, name in zip(kept, ("base", "new"), strict=True)
        ]
    return Sides(tuple(kept[0]), tuple(kept[1]))


def _by_runs(sides: Sides, row: ComparedMetric) -> ComparedMetric:
    """From how runs differ alone, where they are many though each has few requests."""
    statistic, scale = row.statistic, scale_of(row.statistic)
    known = [run.data(statistic) for run in sides.runs]
    series = [data for data in known if data is not None and data.samples >= LEAST_SAMPLES]
    pairs = min(len(sides.base), len(sides.new))
    if len(series) < len(sides.runs) or pairs < LEAST_PAIRS:
        return row
    figures = [on_scale(estimate(data, statistic, 1).value, scale) for data in series]
    base, new = figures[: len(sides.base)], figures[len(sides.base) :]
    found = between_repeats(base, new, sides.seeds, LEVEL)
    if found is None:
        return row
    change = found if scale == "plain" else found.through(lambda value: exponential(value) - 1)
    return replace(row, change=change, verdict=verdict_of(statistic, change))


def _shown(statistic: Statistic, value: float) -> str:
    unit = statistic.metric.unit
    if unit == "ms":
        return duration(value)
    if unit == "%":
        return f"{100 * value:.1f} %"
    return f"{value:.3g} {'per second' if unit == '1/s' else unit}"


_UNKNOWN = {
    "too little data": "too little data",
    "no interval": "figures without an interval",
    "not measured": "no usable run",
}


@dataclass(frozen=True, slots=True)
class Contrasts:
    """`found` are values of the setting, as text, each with its contrast; `unit` is what a sentence
    calls them, as `tokens of cache`."""

    unit: str
    found: tuple[tuple[str, Contrast], ...]

    def said(
        self,
        when: str,
        what: str = "the first token",
        better: str = "comes {} times as fast",
        worse: str = "takes {} times as long",
        nothing: str = "a difference in time to first token",
    ) -> str:
        """`WHEN, WHAT comes 2.4 and 1.8 times as fast with A and B …; with C … (-2 %, …) there is
        no evidence of …`, ending in a full stop. `better` and `worse` have a `{}` for factors.
        """
        surely = [self._factors("better", better), self._factors("worse", worse)]
        shown = "; it ".join(part for part in surely if part)
        unseen = self._values("no evidence")
        parts = [f"{when}, {what} {shown}" if shown else ""]
        told = self._estimates("no evidence")
        parts.append(f"with {unseen}{told} there is no evidence of {nothing}" if unseen else "")
        for verdict, said in _UNKNOWN.items():
            values, told = self._values(verdict), self._estimates(verdict)
            parts.append(f"{said} with {values}{told}" if values else "")
        text = "; ".join(part for part in parts if part)
        return f"{text}." if shown else f"{when}: {text}."

    @property
    def table(self) -> MarkdownTable:
        """A row for each value."""
        sides = next(((each.base, each.new) for _, each in self.found), ("", ""))
        header = (self.unit, *sides, "change", "95 % interval", "")
        return MarkdownTable(header, tuple((value, *each.columns) for value, each in self.found))

    def _of(self, verdict: str) -> Iterator[tuple[str, Contrast]]:
        return ((value, each) for value, each in self.found if each.verdict == verdict)

    def _values(self, verdict: str) -> str:
        values = [value for value, _ in self._of(verdict)]
        return f"{listed(values)} {unit_of(self.unit, values)}".rstrip() if values else ""

    def _estimates(self, verdict: str) -> str:
        """In brackets what the figures say all the same, in the order of the values."""
        told = [each.estimated for _, each in self._of(verdict) if each.estimated]
        return f" ({'; '.join(told)})" if told else ""

    def _factors(self, verdict: str, said: str) -> str:
        ratios = [each.factor or 1.0 for _, each in self._of(verdict)]
        if not ratios:
            return ""
        shown = listed([factor(max(ratio, 1 / ratio)) for ratio in ratios])
        return f"{said.format(shown)} with {self._values(verdict)}"
