"""A matrix of runs, checked as a whole, made in turn, kept as one table."""

import asyncio
from collections import ChainMap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from loadgen.errors import TargetError
from loadgen.launch.checking import CheckedRun, check_cells, require_services
from loadgen.launch.page_file import draw_series
from loadgen.launch.run_series import CellEngines
from loadgen.launch.supervised import worst
from loadgen.launch.terminal import interruptible, say, tell
from loadgen.runs.directory import recording
from loadgen.runs.exit_code import DONE
from loadgen.runs.lock import locked
from loadgen.scratch import scratch_folder
from loadgen.sweep.definition import Definition
from loadgen.sweep.folder import SweepFolder
from loadgen.sweep.matrix import CellPlan, Stretch, cells_of, stretches
from loadgen.sweep.runner import ASSUMED_START_S, Durations, SweepWatch, left_of, run_sweep, spoken
from loadgen.sweep.table import CELLS, CELLS_CSV, write_table


def make_sweep(definition: Definition, out: Path) -> int:
    """Make what is missing of a sweep in `out`.

    Returns the worst exit code of its cells, or 128 and the number of the signal that ended it.
    Raises UsageError before anything is started, RecordError where runs can be recorded no more.
    """
    sweep = SweepRun.plan(definition, out)
    steps = [step for stretch in left_of(sweep.order, sweep.folder) for step in stretch.steps]
    asyncio.run(require_services(sweep.checked[step.cell.cell_id] for step in steps))
    with locked(sweep.folder.path, "sweep"):
        if changed := sweep.folder.changed_versions:
            say(f"cells made so far and those to come are not of the same versions: {changed}")
        with recording(out):
            sweep.folder.open(definition, sweep.cells, sweep.order, sweep.heard)
        code = asyncio.run(sweep.make())
        with recording(out):
            made = write_table(out)
    count = sum(len(stretch.steps) for stretch in sweep.order)
    tell(f"{len(made)} of {count} runs: {out / CELLS_CSV}")
    if made:
        draw_series(out)
    return code or worst([cell.exit_code for cell in made])


@dataclass(frozen=True, slots=True)
class SweepRun:
    """A sweep that may begin: all cells were checked."""

    definition: Definition
    folder: SweepFolder
    cells: Sequence[CellPlan]
    checked: dict[str, CheckedRun]
    order: Sequence[Stretch]

    @classmethod
    def plan(cls, definition: Definition, out: Path) -> "SweepRun":
        folder = SweepFolder(out)
        cells = folder.checked(definition, cells_of(definition))
        checked = check_cells(definition, cells, out / CELLS)
        engines = {cell_id: cell.engine for cell_id, cell in checked.items()}
        order = stretches(definition, cells, lambda cell: engines[cell.cell_id])
        folder.check_places(order)
        run = cls(definition, folder, cells, checked, order)
        folder.check_heard(run.heard)
        return run

    @property
    def heard(self) -> dict[str, str]:
        """What is said of load and engine beside the definition: of each option what the first cell
        hears that leaves it open."""
        heard = (self.checked[cell.cell_id].heard(cell.options) for cell in self.cells)
        return dict(ChainMap(*heard))

    async def make(self) -> int:
        """0 when all is made, else why it ended early."""
        command = self.definition.command(self.folder.path)
        with scratch_folder() as scratch:
            with interruptible() as interruption:
                engines = CellEngines(self.definition, self.checked, scratch, interruption)
                watch = SweepWatch(say, lambda: bool(interruption.signal_number))
                say(self._plan_line())
                try:
                    await run_sweep(self.order, self.folder, engines, self._durations(), watch)
                except TargetError as error:
                    say(f"{error}; once that is mended, continue with {command}")
                    return error.exit_code
            if interruption.signal_number and left_of(self.order, self.folder):
                say(f"stopped: what was recorded is kept, continue with {command}")
                return 128 + interruption.signal_number
        return DONE

    def show(self) -> None:
        """Print what would be made."""
        for number, stretch in enumerate(left_of(self.order, self.folder), 1):
            start = "start" if stretch.engine.is_ours else "host"
            tell(f"{start} {number}: {stretch.engine.label}")
            for step in stretch.steps:
                tell(f"    {step.cell.title or step.cell.cell_id}, repeat {step.repeat}")
        tell(self._plan_line())

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
