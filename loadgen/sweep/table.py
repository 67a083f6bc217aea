"""All cells of a sweep as one table, from nothing but the run directories."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from loadgen.compare.metrics import Statistic
from loadgen.compare.run import faults_of
from loadgen.runs.csv_log import to_csv
from loadgen.runs.directory import RUN_JSON
from loadgen.runs.exit_code import DONE, FAILED, SATURATED
from loadgen.runs.json_file import malformed, read_object, value_at, write_json
from loadgen.runs.recorded import SUMMARY_JSON
from loadgen.scratch import write_whole
from loadgen.stats.metrics import figures, summarized
from loadgen.stats.server_counters import LMCACHE, OFFLOAD, PROMPT_FIGURES

CELL_JSON = "cell.json"
WHOLE = (DONE, FAILED, SATURATED)
"""Exit codes of runs that have something to say."""
_KINDS: Mapping[str, type | tuple[type, ...]] = {
    **dict.fromkeys(("axes", "options"), dict),
    **dict.fromkeys(("repeat", "seed", "position", "exit_code"), int),
    **dict.fromkeys(("cell_id", "error"), str),
    "wall_s": (int, float),
    **dict.fromkeys(("engine_start_s", "run_time_s"), (int, float, type(None))),
}


@dataclass(frozen=True, slots=True)
class MadeCell:
    """A run that came to its end. `position` counts the runs of the sweep in the order in which
    they ended, from 1. `wall_s` is all the run took, `engine_start_s` the start of its engine
    before it, None where that was running already. `run_time_s` is what `--run-time` asked for.
    `error` is what ended the engine, or kept a run from coming of it."""

    cell_id: str
    axes: Mapping[str, str]
    options: Mapping[str, str]
    repeat: int
    seed: int
    position: int
    exit_code: int
    wall_s: float
    engine_start_s: float | None = None
    run_time_s: float | None = None
    error: str = ""

    @property
    def is_whole(self) -> bool:
        """Whether the run was made to its end; any other is made again."""
        return self.exit_code in WHOLE and not self.error

    def write(self, run: Path) -> None:
        """Note it in the directory of the run."""
        write_json(run / CELL_JSON, asdict(self))


def read_made_cell(run: Path) -> MadeCell | None:
    """None for a run that did not come to its end. Raises UsageError for a damaged note."""
    if not (run / CELL_JSON).exists():
        return None
    found = read_object(run / CELL_JSON)
    for name, kind in _KINDS.items():
        if name in found and not isinstance(found[name], kind):
            raise malformed(run / CELL_JSON, f"{name} is {found[name]!r}")
    try:
        return MadeCell(**{each.name: found[each.name] for each in fields(MadeCell)})
    except KeyError as error:
        raise malformed(run / CELL_JSON, f"{error.args[0]} is missing") from None


def figures_of(
    description: Mapping[str, Any], summary: Mapping[str, Any], file: Path
) -> dict[str, float | None]:
    """Every one of `FIGURES`, None where the run has none, or too few values for a percentile.
    Raises UsageError, naming `file`, for what is no number."""
    content = {**summary, "run": description, "totals": _totals(summary)}
    found = {name: _figure(value_at(content, place), file) for name, place in FIGURES.items()}
    few = (
        name
        for name, (count, least) in _LEAST.items()
        if (_figure(value_at(content, count), file) or 0) < least
    )
    return {**found, **dict.fromkeys(few)}


def _totals(summary: Mapping[str, Any]) -> dict[str, float]:
    """Of `ok` requests: their mean is exact."""
    found = {name: value_at(summary, f"metrics.{name}") or {} for name in TOTALS}
    return {
        name: round(metric["mean"] * metric["count"])
        for name, metric in found.items()
        if metric.get("count")
    }


def _figure(value: Any, file: Path) -> float | None:
    if value is None:
        return None
    if not isinstance(value, int | float):
        raise malformed(file, f"{value!r} is no number")
    return float(value)


TOTALS = ("prompt_tokens", "output_tokens")
FIGURES: Mapping[str, str] = {
    "requests": "requests",
    "ok": "outcomes.ok",
    "failed": "failed",
    "duration_s": "duration_s",
    "peak_concurrency": "peak_concurrency",
    **{each.name: each.name for each in figures()},
    **{
        each.statistic(of_values): f"metrics.{each.name}.{of_values}"
        for each in summarized()
        if not each.neutral
        for of_values in ("mean", "p50", "p95", "p99")
    },
    **{name: f"totals.{name}" for name in TOTALS},
    **{
        name: f"server.{name}"
        for name in (
            *PROMPT_FIGURES,
            *OFFLOAD,
            *LMCACHE,
            *("offload_load_mean_s", "offload_wait_mean_s"),
            *("kv_blocks_evicted", "kv_block_idle_mean_s", "kv_block_reuse_gap_mean_s"),
            *("num_preemptions", "peak_running", "peak_waiting", "peak_kv_cache_usage"),
            *("peak_engine_rss_mb", "peak_lmcache_rss_mb", "peak_lmcache_l1_bytes"),
            "server_cpu_ms_per_token",
        )
    },
    "settled": "steady_state.settled",
    "context_affinity": "replicas.context_affinity",
    "usable_tokens": "run.target.usable_tokens",
    "l1_gb": "run.target.l1_gb",
    "distinct_contexts": "diversity.distinct_contexts",
    "effective_contexts": "diversity.effective_contexts",
    "client_saturated": "client_saturated",
}
"""Each figure with where it stands in `summary.json`, or in `run.json` below `run`."""
_LEAST: Mapping[str, tuple[str, int]] = {
    each.statistic(tail): (f"metrics.{each.name}.count", Statistic(each, tail).least_values)
    for each in summarized()
    if not each.neutral
    for tail in ("p95", "p99")
}


CELLS, CELLS_CSV = "cells", "cells.csv"
SWARM_LOG = "swarm.log"


@dataclass(frozen=True, slots=True)
class Cell:
    """A run of a sweep. `axes` tell it from others (empty text where it has no such option),
    `options` are common to all. `repeat` and `position` count from 1. `figures` has every name of
    `FIGURES`, None where the run has none. `fault` says why it decides nothing, empty otherwise."""

    cell_id: str
    axes: dict[str, str]
    options: dict[str, str]
    repeat: int
    seed: int
    position: int
    started_unix_s: float | None
    run: Path
    exit_code: int
    fault: str
    cache_state: str
    figures: dict[str, float | None]

    @property
    def valid(self) -> bool:
        """Whether its figures are worth reading."""
        return not self.fault


def read_cells(directory: Path) -> list[Cell]:
    """The finished cells of a sweep in the order in which they were made. Raises UsageError for a
    file that is damaged."""
    cells = []
    for run in sorted((directory / CELLS).glob("*/")):
        made = read_made_cell(run)
        if made is not None:
            cells.append(_cell(run, made))
    return sorted(_of_alike_axes(cells), key=lambda cell: (cell.position, cell.run.name))


def _of_alike_axes(cells: Sequence[Cell]) -> Iterator[Cell]:
    """With what a later one differs in: it was an option of all of those before it."""
    names = dict.fromkeys(name for cell in cells for name in cell.axes)
    for cell in cells:
        yield replace(
            cell,
            axes={name: cell.axes.get(name, cell.options.get(name, "")) for name in names},
            options={name: text for name, text in cell.options.items() if name not in names},
        )


def write_table(directory: Path) -> list[Cell]:
    """Write `cells.csv`, replaced in one step; returns the cells. Raises UsageError."""
    cells = read_cells(directory)
    write_whole(directory / CELLS_CSV, to_csv(_rows(directory, cells)).encode())
    return cells


def _rows(directory: Path, cells: Sequence[Cell]) -> Iterator[Sequence[Any]]:
    axes = list(dict.fromkeys(name for cell in cells for name in cell.axes if name != "seed"))
    options = list(dict.fromkeys(name for cell in cells for name in cell.options if name != "seed"))
    yield [*axes, *options, *COLUMNS, *FIGURES]
    for cell in cells:
        yield [
            *(cell.axes.get(name) for name in axes),
            *(cell.options.get(name) for name in options),
            cell.cell_id,
            cell.repeat,
            cell.seed,
            cell.position,
            cell.started_unix_s,
            str(cell.run.relative_to(directory)),
            cell.exit_code,
            cell.valid,
            cell.fault,
            cell.cache_state,
            *cell.figures.values(),
        ]


COLUMNS = (
    "cell",
    "repeat_number",
    "seed",
    "position",
    "started_unix_s",
    "run",
    "exit_code",
    "valid",
    "fault",
    "cache_state",
)
"""What stands between options and figures; not the names of options, of which one is `repeat`."""


def _cell(run: Path, made: MadeCell) -> Cell:
    description, summary = read_object(run / RUN_JSON), read_object(run / SUMMARY_JSON)
    faults = [made.error] if made.error else [str(each) for each in faults_of(description, summary)]
    if not faults and not summary:
        faults = [f"no run came of it, exit code {made.exit_code}: {_last_words(run)}"]
    return Cell(
        cell_id=made.cell_id,
        axes=dict(made.axes),
        options=dict(made.options),
        repeat=made.repeat,
        seed=made.seed,
        position=made.position,
        started_unix_s=description.get("start_unix_s"),
        run=run,
        exit_code=made.exit_code,
        fault="; ".join(faults),
        cache_state=str(description.get("cache_state") or ""),
        figures=figures_of(description, summary, run / SUMMARY_JSON),
    )


def _last_words(run: Path) -> str:
    """What its swarm said last."""
    try:
        said = (run / SWARM_LOG).read_text(encoding="utf-8", errors="replace").split("\n")
    except OSError:
        said = []
    return next((line for line in reversed(said) if line), "its swarm said nothing")
