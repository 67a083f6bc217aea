"""Makes the runs of a sweep one after the other, on as few engine starts as planned."""

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from loadgen.errors import TargetError
from loadgen.sweep.durations import Durations, spoken
from loadgen.sweep.folder import SweepFolder
from loadgen.sweep.made_cell import WHOLE, MadeCell
from loadgen.sweep.order import Engine, Step, Stretch
from loadgen.sweep.progress import made_line
from loadgen.sweep.table import write_table

MOST_DEATHS = 3


class RunningEngine(Protocol):
    """An engine between its start and its stop."""

    async def run(self, step: Step, out: Path) -> int:
        """Make a run in `out`; returns its exit code. Raises TargetError where the engine died."""


class Bench(Protocol):
    """Where engines are started and runs are made."""

    def start(
        self, engine: Engine, steps: Sequence[Step], logs: Path
    ) -> AbstractAsyncContextManager[RunningEngine]:
        """Run an engine for these steps, its logs in `logs`. Raises TargetError."""


@dataclass(frozen=True, slots=True)
class Watch:
    """Whoever waits for the sweep: told of it, and able to stop it."""

    say: Callable[[str], None]
    is_stopped: Callable[[], bool]


def left_of(order: Sequence[Stretch], folder: SweepFolder) -> list[Stretch]:
    """The part of it that is still to be made."""
    stretches = []
    for stretch in order:
        steps = [step for step in stretch.steps if folder.made(step) is None]
        if steps:
            stretches.append(Stretch(stretch.engine, steps))
    return stretches


async def run_sweep(
    order: Sequence[Stretch], folder: SweepFolder, bench: Bench, durations: Durations, watch: Watch
) -> None:
    """Make every step that is not there yet and keep `cells.csv` up to date.

    Whatever becomes of one run, the next is made, if need be on a new engine. Ends early where
    `watch` is stopped: the run at work then is no finished cell. Raises TargetError after three
    runs in a row that came to nothing.
    """
    runner = _Runner(order, folder, bench, durations, watch)
    while runner.left and not watch.is_stopped():
        await runner.run_stretch()


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a run; its fields are those of `MadeCell`."""

    exit_code: int
    wall_s: float
    engine_start_s: float | None
    error: str


class _Runner:
    """`left` shrinks by each run that is made."""

    def __init__(
        self,
        order: Sequence[Stretch],
        folder: SweepFolder,
        bench: Bench,
        durations: Durations,
        watch: Watch,
    ) -> None:
        self.left = left_of(order, folder)
        self._folder, self._bench, self._durations, self._watch = folder, bench, durations, watch
        self._steps = sum(len(stretch.steps) for stretch in order)
        self._position = max((made.position for made in folder.made_cells()), default=0)
        self._deaths = 0

    async def run_stretch(self) -> None:
        """Make the first stretch that is left, or what can be made of it on one start."""
        stretch = self.left[0]
        steps = list(stretch.steps)
        await self._run_steps(stretch.engine, steps)
        self.left[:1] = [Stretch(stretch.engine, steps)] if steps else []
        if self._deaths >= MOST_DEATHS:
            raise TargetError(f"{MOST_DEATHS} runs in a row came to nothing: giving up")

    async def _run_steps(self, engine: Engine, steps: list[Step]) -> None:
        """Take steps off the list as they are made."""
        logs = self._folder.new_logs(engine)
        begun_s = time.monotonic()
        try:
            async with self._bench.start(engine, tuple(steps), logs) as running:
                start_s = time.monotonic() - begun_s if engine.is_ours else None
                is_sound = True
                while is_sound and steps and not self._watch.is_stopped():
                    is_sound = await self._make(running, steps, logs, start_s)
                    start_s = None
        except TargetError as error:
            if steps and not self._watch.is_stopped():
                out = self._new_run(steps[0], logs)
                wall_s = time.monotonic() - begun_s
                self._note(steps, out, Outcome(error.exit_code, wall_s, None, str(error)))

    async def _make(
        self, running: RunningEngine, steps: list[Step], logs: Path, start_s: float | None
    ) -> bool:
        """Make the first step; whether the engine is good for another."""
        out = self._new_run(steps[0], logs)
        begun_s, error = time.monotonic(), ""
        try:
            code = await running.run(steps[0], out)
        except TargetError as problem:
            code, error = problem.exit_code, str(problem)
        if self._watch.is_stopped():
            return False
        self._note(steps, out, Outcome(code, time.monotonic() - begun_s, start_s, error))
        return code in WHOLE

    def _new_run(self, step: Step, logs: Path) -> Path:
        if kept := self._folder.set_aside(step):
            self._watch.say(f"{step.name} did not come to its end: kept in {kept}, made again")
        return self._folder.new_run(step, logs)

    def _note(self, steps: list[Step], out: Path, outcome: Outcome) -> None:
        """Keep what became of the first step, which then is made."""
        step = steps.pop(0)
        self._position += 1
        self._deaths = 0 if outcome.exit_code in WHOLE else self._deaths + 1
        made = MadeCell(
            cell_id=step.cell.cell_id,
            axes=step.cell.axes,
            options=step.cell.fixed,
            repeat=step.repeat,
            seed=step.seed,
            position=self._position,
            exit_code=outcome.exit_code,
            wall_s=outcome.wall_s,
            engine_start_s=outcome.engine_start_s,
            run_time_s=self._durations.run_times_s.get(step.cell.cell_id),
            error=outcome.error,
        )
        made.write(out)
        self._durations.add(made)
        self._tell(steps, out)

    def _tell(self, steps: list[Step], out: Path) -> None:
        cells = {cell.run: cell for cell in write_table(self._folder.path)}
        others = [step for stretch in self.left[1:] for step in stretch.steps]
        starts = sum(stretch.engine.is_ours for stretch in self.left[1:])
        left = [*steps, *others]
        place = f"[{self._steps - len(left)}/{self._steps}]"
        left_s = self._durations.left_s(left, starts)
        self._watch.say(f"{place} {made_line(cells[out])}; left: {spoken(left_s)}")
