"""`kvswarm sweep`: a matrix of runs, made in turn, kept as one table."""

import argparse
import asyncio
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from loadgen.errors import TargetError, UsageError
from loadgen.launch.arguments import Parser
from loadgen.launch.cell_bench import CellBench
from loadgen.launch.cell_check import CheckedCell, check_cells
from loadgen.launch.supervised import worst
from loadgen.launch.terminal import interruptible, say
from loadgen.runs.exit_code import DONE
from loadgen.runs.lock import locked
from loadgen.sweep.definition import Definition, read_definition
from loadgen.sweep.durations import ASSUMED_START_S, Durations, spoken
from loadgen.sweep.folder import SweepFolder
from loadgen.sweep.matrix import CellPlan, cells_of
from loadgen.sweep.order import Stretch, stretches
from loadgen.sweep.runner import Watch, left_of, run_sweep
from loadgen.sweep.table import CELLS, CELLS_CSV, write_table


def sweep_command(arguments: list[str]) -> int:
    """Make or continue a sweep, show what it would do, or rebuild its table."""
    parsed = _parser().parse_args(arguments)
    if parsed.table is not None:
        return _rebuild(parsed.table)
    if parsed.file is None:
        raise UsageError("no sweep to make: give FILE.toml, see `kvswarm sweep --help`")
    definition = read_definition(parsed.file)
    out = parsed.out or Path("runs") / definition.name
    if not parsed.dry_run:
        return make_sweep(definition, out)
    _Sweep.plan(definition, out).show()
    return DONE


def make_sweep(definition: Definition, out: Path) -> int:
    """Make what is missing of a sweep in `out`.

    Returns the worst exit code of its cells, or 128 and the number of the signal that ended it.
    Raises UsageError before anything is started.
    """
    sweep = _Sweep.plan(definition, out)
    with locked(sweep.folder.path, "sweep"):
        if changed := sweep.folder.changed_versions:
            say(f"cells made so far and those to come are not of the same versions: {changed}")
        sweep.folder.open(definition, sweep.cells, sweep.order)
        code = asyncio.run(sweep.make())
        made = write_table(out)
    count = sum(len(stretch.steps) for stretch in sweep.order)
    print(f"{len(made)} of {count} runs: {out / CELLS_CSV}", flush=True)
    return code or worst([cell.exit_code for cell in made])


@dataclass(frozen=True, slots=True)
class _Sweep:
    """A sweep that may begin: all cells were checked."""

    definition: Definition
    folder: SweepFolder
    cells: Sequence[CellPlan]
    checked: dict[str, CheckedCell]
    order: Sequence[Stretch]

    @classmethod
    def plan(cls, definition: Definition, out: Path) -> "_Sweep":
        cells = cells_of(definition)
        folder = SweepFolder(out)
        folder.check(definition, cells)
        checked = check_cells(definition, cells, out)
        engines = {cell_id: cell.engine for cell_id, cell in checked.items()}
        order = stretches(definition, cells, lambda cell: engines[cell.cell_id])
        return cls(definition, folder, cells, checked, order)

    async def make(self) -> int:
        """0 when all is made, else why it ended early."""
        command = self.definition.command(self.folder.path)
        with tempfile.TemporaryDirectory(prefix="kvswarm-") as scratch:
            with interruptible() as interruption:
                bench = CellBench(self.definition, self.checked, Path(scratch), interruption)
                watch = Watch(say, lambda: bool(interruption.signal_number))
                say(self._plan_line())
                try:
                    await run_sweep(self.order, self.folder, bench, self._durations(), watch)
                except TargetError as error:
                    say(f"{error}; once that is mended, continue with {command}")
                    return error.exit_code
            if interruption.signal_number:
                say(f"stopped: what was recorded is kept, continue with {command}")
                return 128 + interruption.signal_number
        return DONE

    def show(self) -> None:
        """Print what would be made."""
        for number, stretch in enumerate(left_of(self.order, self.folder), 1):
            start = "start" if stretch.engine.is_ours else "host"
            print(f"{start} {number}: {stretch.engine.label}")
            for step in stretch.steps:
                print(f"    {step.cell.title or step.cell.cell_id}, repeat {step.repeat}")
        print(self._plan_line())

    def _plan_line(self) -> str:
        left = left_of(self.order, self.folder)
        steps = [step for stretch in left for step in stretch.steps]
        total = sum(len(stretch.steps) for stretch in self.order)
        starts = sum(stretch.engine.is_ours for stretch in left)
        durations = self._durations()
        time = spoken(durations.left_s(steps, starts))
        guess = f" at {ASSUMED_START_S:g} s a start" if starts and not durations.is_measured else ""
        done = f", {total - len(steps)} are there" if len(steps) < total else ""
        return (
            f"{len(self.cells)} cells, {total} runs{done}, engine starts: {starts};"
            f" time left: {time}{guess}"
        )

    def _durations(self) -> Durations:
        durations = Durations({name: cell.run_time_s for name, cell in self.checked.items()})
        for made in self.folder.made_cells():
            durations.add(made)
        return durations


def _rebuild(directory: Path) -> int:
    if not (directory / CELLS).is_dir():
        raise UsageError(f"{directory} holds no sweep: name the directory that has cells in it")
    print(f"{len(write_table(directory))} runs: {directory / CELLS_CSV}")
    return DONE


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="kvswarm sweep",
        usage="kvswarm sweep FILE.toml [--out DIR] [--dry-run] | --table DIR",
        description="Every combination of the options in FILE.toml, one run each. The same command"
        " continues a sweep that was stopped.",
        allow_abbrev=False,
    )
    parser.add_argument("file", nargs="?", type=Path, metavar="FILE.toml", help="the sweep")
    parser.add_argument("--out", type=Path, metavar="DIR", help="default: runs/NAME")
    parser.add_argument("--dry-run", action="store_true", help="check and show all, run nothing")
    parser.add_argument("--table", type=Path, metavar="DIR", help="write its cells.csv anew")
    return parser
