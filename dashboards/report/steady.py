"""The warm-up of a run on its page: what was left out, what was found, figures with and without."""

from collections.abc import Iterator, Mapping, Sequence

from dashboards.report.check import Check
from dashboards.report.figures_of import Figures
from dashboards.report.run_files import RunFiles
from dashboards.report.tables import Row, Table
from dashboards.report.wording import counted, number, percent
from loadgen.stats.steady_state import LATENCIES, SteadyState, is_notable

STATISTICS = ("count", "mean", "p50", "p95", "p99")


def steady_checks(run: RunFiles) -> Iterator[Check]:
    """Whether the figures are those of a steady state."""
    if run.recorded.warmup_s:
        yield Check("warm-up", "note", _left_out(run))
    if run.recorded.steady_state is not None:
        yield _state(run.recorded.steady_state)


def _left_out(run: RunFiles) -> str:
    told = run.summary.get("warmup") or {}
    requests = told.get("requests")
    said = "" if requests is None else f", {counted(requests, 'request')}"
    failed = f", of which {told['failed']:,} failed" if told.get("failed") else ""
    return f"the first {number(run.recorded.warmup_s, 's')} are left out (--warmup){said}{failed}"


def _state(steady: SteadyState) -> Check:
    if steady.settled is None:
        return Check("steady state", "unknown", "too few requests to tell")
    if not steady.settled:
        said = "it never settled: time to first token drifted, also behind any warm-up"
        return Check("steady state", "doubt", said)
    if not is_notable(steady.to_json()):
        return Check("steady state", "good", "time to first token did not drift")
    said = (
        f"{counted(steady.early, 'request')} of the first {number(steady.from_s, 's')} are a"
        f" warm-up that moves the mean time to first token by {percent(steady.shift)}, and count"
    )
    return Check("steady state", "doubt", f"{said} (--warmup leaves them out)")


def steady_table(runs: Sequence[RunFiles], figures: Mapping[str, Figures]) -> Table | None:
    """With and without the warm-up that was found; None where none makes a difference."""
    rows: list[Row] = []
    for run in runs:
        steady = run.recorded.steady_state
        if steady is not None and is_notable(steady.to_json()):
            rows += _rows(run.name if len(runs) > 1 else "", steady, figures[run.name])
    note = "Latencies of ok requests, all of them and those due after the warm-up that was found."
    return Table("Warm-up", ("", *STATISTICS), tuple(rows), note=note) if rows else None


def _rows(name: str, steady: SteadyState, figures: Figures) -> Iterator[Row]:
    behind = f", {name}" if name else ""
    for metric in LATENCIES:
        both = {
            "all": figures.metrics.get(metric, {}),
            f"from {number(steady.from_s, 's')} on": steady.metrics[metric],
        }
        if steady.metrics[metric]["count"]:
            for which, found in both.items():
                cells = tuple(number(found.get(each)) for each in STATISTICS)
                yield Row(f"{metric}{behind}, {which}", cells)
