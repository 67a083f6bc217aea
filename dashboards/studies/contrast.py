"""Two sets of cells set against each other in one metric, by the rules of `kvswarm compare`."""

from collections.abc import Sequence
from dataclasses import dataclass

from dashboards.studies.cell import Cells
from dashboards.studies.wording import change, duration
from loadgen.compare.metrics import Statistic, parse_statistic
from loadgen.compare.row import Row, make_row
from loadgen.compare.run import Run
from loadgen.compare.run_reader import read_run
from loadgen.compare.sides import Sides

LEVEL = 0.95
"""Of each interval."""


@dataclass(frozen=True, slots=True)
class Contrast:
    """What `new` has that `base` has not; `row` is None where a side has no sound cell."""

    base: str
    new: str
    row: Row | None

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

    @property
    def words(self) -> str:
        """`a 812 ms, b 411 ms (-49 %, -55 % to -40 %)`, with what is to be thought of it."""
        if self.row is None or self.row.base is None or self.row.new is None:
            return f"{self.base} against {self.new} was not measured"
        base, new, change, interval, verdict = self.columns
        within = f"{change}, {interval}" if interval else change
        text = f"{self.base} {base}, {self.new} {new} ({within})"
        return text if verdict in ("better", "worse") else f"{text}: {verdict}"

    @property
    def columns(self) -> tuple[str, str, str, str, str]:
        """Both figures, the change, its interval and the verdict; empty where not known."""
        row = self.row
        if row is None or row.base is None or row.new is None:
            return "", "", "", "", self.verdict
        base, new = (_shown(row.statistic, value) for value in (row.base, row.new))
        if row.change is None:
            return base, new, "", "", self.verdict
        low, middle, high = (
            _changed(row.statistic, part)
            for part in (row.change.low, row.change.estimate, row.change.high)
        )
        known = self.verdict in ("better", "worse", "no evidence")
        return base, new, middle, f"{low} to {high}" if known else "", self.verdict


def contrast(base: Cells, new: Cells, names: tuple[str, str], metric: str) -> Contrast:
    """`metric` as in `kvswarm compare` (`ttft_ms.mean`); repeats of a side are used together.
    Raises UsageError for a run that cannot be read."""
    sides = [[read_run(cell.run) for cell in side.sound] for side in (base, new)]
    return contrast_runs(sides[0], sides[1], names, metric)


def contrast_runs(
    base: Sequence[Run], new: Sequence[Run], names: tuple[str, str], metric: str
) -> Contrast:
    """The same of runs, or of parts of runs, that were read before."""
    statistic = parse_statistic(metric)
    told = [tuple(run for run in side if run.has(statistic)) for side in (base, new)]
    if not all(told):
        return Contrast(*names, row=None)
    return Contrast(*names, row=make_row(Sides(told[0], told[1]), statistic, LEVEL))


def _shown(statistic: Statistic, value: float) -> str:
    unit = statistic.metric.unit
    if unit == "ms":
        return duration(value)
    if unit == "%":
        return f"{100 * value:.1f} %"
    return f"{value:.3g} {'per second' if unit == '1/s' else unit}"


def _changed(statistic: Statistic, part: float) -> str:
    return f"{100 * part:+.1f} points" if statistic.metric.form == "share" else change(part)
