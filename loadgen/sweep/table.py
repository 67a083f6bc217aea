"""All cells of a sweep as one table, from nothing but the run directories."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loadgen.compare.run import faults_of
from loadgen.runs.csv_log import to_csv
from loadgen.runs.directory import RUN_JSON
from loadgen.runs.json_file import read_object
from loadgen.sweep.figures import FIGURES, figures_of
from loadgen.sweep.made_cell import MadeCell, read_made_cell

CELLS, CELLS_CSV = "cells", "cells.csv"
SUMMARY_JSON, SWARM_LOG = "summary.json", "swarm.log"


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
    return sorted(cells, key=lambda cell: (cell.position, cell.run.name))


def write_table(directory: Path) -> list[Cell]:
    """Write `cells.csv`, replaced in one step; returns the cells. Raises UsageError."""
    cells = read_cells(directory)
    temporary = directory / f"{CELLS_CSV}.tmp"
    temporary.write_text(to_csv(_rows(directory, cells)), encoding="utf-8")
    temporary.replace(directory / CELLS_CSV)
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
