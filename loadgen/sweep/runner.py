"""Makes the runs of a sweep one after the other, on as few engine starts as planned."""

import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from loadgen.errors import TargetError, UsageError
from loadgen.runs.directory import recording, unrecorded
from loadgen.runs.exit_code import UNRECORDED
from loadgen.runs.recorded import SUMMARY_JSON
from loadgen.sweep.folder import SweepFolder
from loadgen.sweep.matrix import CellEngine, Stretch, SweepStep, axes_title
from loadgen.sweep.table import WHOLE, Cell, MadeCell, write_table

ASSUMED_START_S, ASSUMED_OVERHEAD_S = 40.0, 5.0
"""Until an engine was started here: of a small model on two cores; and what a run takes beyond its
`--run-time`."""


@dataclass(slots=True)
class Durations:
    """`run_times_s` is what each cell's `--run-time` asks for, None without one."""

    run_times_s: Mapping[str, float | None]
    _starts_s: list[float] = field(default_factory=list)
    _overheads_s: list[float] = field(default_factory=list)
    _walls_s: dict[str, list[float]] = field(default_factory=dict)

    def add(self, made: MadeCell) -> None:
        """Learn from a run that was made to its end."""
        if not made.is_whole:
            return
        if made.engine_start_s is not None:
            self._starts_s.append(made.engine_start_s)
        if made.run_time_s is not None:
            self._overheads_s.append(made.wall_s - made.run_time_s)
        self._walls_s.setdefault(made.cell_id, []).append(made.wall_s)

    @property
    def is_measured(self) -> bool:
        """Whether an engine's start was timed."""
        return bool(self._starts_s)

    def left_s(self, steps: Iterable[SweepStep], starts: int) -> float | None:
        """Seconds for these runs and so many engine starts; None while not known."""
        runs_s = [self._run_s(step.cell.cell_id) for step in steps]
        known_s = [each for each in runs_s if each is not None]
        if len(known_s) < len(runs_s):
            return None
        return sum(known_s) + starts * _median(self._starts_s, ASSUMED_START_S)

    def _run_s(self, cell_id: str) -> float | None:
        if own := self._walls_s.get(cell_id):
            return _median(own, 0.0)
        run_time_s = self.run_times_s.get(cell_id)
        if run_time_s is not None:
            return run_time_s + _median(self._overheads_s, ASSUMED_OVERHEAD_S)
        others = [wall_s for walls_s in self._walls_s.values() for wall_s in walls_s]
        return _median(others, 0.0) if others else None


def spoken(seconds: float | None) -> str:
    """`40 s`, `12 min`, `3 h 5 min`."""
    if seconds is None:
        return "not known yet"
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"


def _median(values: Sequence[float], default: float) -> float:
    return statistics.median(values) if values else default


SPOKEN = (
    ("ok", "{:.0f} ok"),
    ("failed", "{:.0f} failed"),
    ("ttft_p50_ms", "TTFT p50 {:,.0f} ms"),
    ("makespan_p50_s", "makespan p50 {:,.2f} s"),
    ("requests_per_s", "{:.2f} requests/s"),
    ("hit_rate", "hit rate {:.0%}"),
    ("external_hit_rate", "external {:.0%}"),
)
"""Of the figures those that are there and not 0, but `ok` and `hit_rate` always."""


def made_line(cell: Cell) -> str:
    """Which cell it was and its key figures, or why it has none."""
    figures = [
        form.format(value)
        for name, form in SPOKEN
        if (value := cell.figures[name]) or (value == 0 and name in ("ok", "hit_rate"))
    ]
    if cell.fault:
        figures.append(f"decides nothing, exit code {cell.exit_code}: {cell.fault}")
    elif cell.exit_code:
        figures.append(f"exit code {cell.exit_code}")
    name = axes_title(cell.axes) or cell.cell_id
    return f"{name}, repeat {cell.repeat}: {', '.join(figures)}"


MOST_DEATHS = 3


class RunningEngine(Protocol):
    """An engine between its start and its stop."""

    async def run(self, step: SweepStep, out: Path) -> int:
        """Make a run in `out`; returns its exit code. Raises TargetError where the engine died."""


class EngineLauncher(Protocol):
    """Where engines are started and runs are made."""

    def start(
        self, engine: CellEngine, steps: Sequence[SweepStep], logs: Path
    ) -> AbstractAsyncContextManager[RunningEngine]:
        """Run an engine for these steps, its logs in `logs`. Raises TargetError."""


@dataclass(frozen=True, slots=True)
class SweepWatch:
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
    order: Sequence[Stretch],
    folder: SweepFolder,
    launcher: EngineLauncher,
    durations: Durations,
    watch: SweepWatch,
) -> None:
    """Make every step that is not there yet and keep `cells.csv` up to date.

    Whatever becomes of one run, the next is made, if need be on a new engine. Ends early where
    `watch` is stopped: the run at work then is no finished cell. Raises TargetError after three
    runs in a row that came to nothing, and RecordError where nothing can be written any more.
    """
    runner = _Runner(order, folder, launcher, durations, watch)
    while runner.left and not watch.is_stopped():
        await runner.run_stretch()


@dataclass(frozen=True, slots=True)
class RunOutcome:
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
        launcher: EngineLauncher,
        durations: Durations,
        watch: SweepWatch,
    ) -> None:
        self.left = left_of(order, folder)
        self._folder, self._launcher = folder, launcher
        self._durations, self._watch = durations, watch
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

    async def _run_steps(self, engine: CellEngine, steps: list[SweepStep]) -> None:
        """Take steps off the list as they are made."""
        logs = self._folder.new_logs(engine)
        begun_s, is_started = time.monotonic(), False
        try:
            async with self._launcher.start(engine, tuple(steps), logs) as running:
                start_s = time.monotonic() - begun_s if engine.is_ours else None
                is_sound = is_started = True
                while is_sound and steps and not self._watch.is_stopped():
                    is_sound = await self._make(running, steps, logs, start_s)
                    start_s = None
        except (TargetError, UsageError) as error:
            if isinstance(error, UsageError) and is_started:
                raise
            if steps and not self._watch.is_stopped():
                out = self._new_run(steps[0], logs)
                wall_s = time.monotonic() - begun_s
                self._note(steps, out, RunOutcome(error.exit_code, wall_s, None, str(error)))

    async def _make(
        self, running: RunningEngine, steps: list[SweepStep], logs: Path, start_s: float | None
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
        if code in WHOLE and not error and not (out / SUMMARY_JSON).is_file():
            error = "no summary came of it"
        self._note(steps, out, RunOutcome(code, time.monotonic() - begun_s, start_s, error))
        return code in WHOLE and not error

    def _new_run(self, step: SweepStep, logs: Path) -> Path:
        with recording(self._folder.path):
            if kept := self._folder.set_aside(step):
                self._watch.say(f"{step.name} did not come to its end: kept in {kept}, made again")
            return self._folder.new_run(step, logs)

    def _note(self, steps: list[SweepStep], out: Path, outcome: RunOutcome) -> None:
        """Keep what became of the first step, which then is made. Raises RecordError."""
        if outcome.exit_code == UNRECORDED:
            raise unrecorded(out)
        step = steps.pop(0)
        self._position += 1
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
        self._deaths = 0 if made.is_whole else self._deaths + 1
        self._durations.add(made)
        with recording(out):
            made.write(out)
            cells = {cell.run: cell for cell in write_table(self._folder.path)}
        self._tell(steps, cells[out])

    def _tell(self, steps: list[SweepStep], cell: Cell) -> None:
        others = [step for stretch in self.left[1:] for step in stretch.steps]
        starts = sum(stretch.engine.is_ours for stretch in self.left[1:])
        left = [*steps, *others]
        place = f"[{self._steps - len(left)}/{self._steps}]"
        left_s = self._durations.left_s(left, starts)
        self._watch.say(f"{place} {made_line(cell)}; left: {spoken(left_s)}")
