"""A search for the highest load that meets an objective: its trials, one after the other."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

from loadgen.compare.run import faults_of
from loadgen.errors import TargetError, UsageError
from loadgen.launch.arguments import is_given
from loadgen.launch.checking import CheckedRun, check_run, last_line, require_services
from loadgen.launch.page_file import draw_series
from loadgen.launch.run_series import RunSeries, run_series
from loadgen.launch.terminal import interruptible, say, tell
from loadgen.runs.directory import RUN_JSON, recording, unrecorded
from loadgen.runs.exit_code import DONE, FAILED, SATURATED, TARGET_DIED, UNRECORDED, WRONG_USE
from loadgen.runs.json_file import read_object
from loadgen.runs.lock import locked
from loadgen.runs.recorded import SUMMARY_JSON
from loadgen.saturate.folder import TRIALS, SearchFolder, points_of
from loadgen.saturate.search_state import Ending, SearchPlan, SearchState, TrialStep
from loadgen.saturate.trial import read_trial
from loadgen.saturate.wording import plan_line, result_lines, trial_line
from loadgen.scratch import scratch_folder
from loadgen.sweep.table import SWARM_LOG
from rag_store.extras import install_command

PICTURE = "saturation.svg"
SET_BY_THE_SEARCH = ("users", "rate", "spawn-rate", "run-time")
OTHER_ENDS = {"batches": "a run ends by its time", "trace": "a trace has its own times"}
"""Options with which a trial would not be of the load that the search sets, and why."""


def search(plan: SearchPlan, out: Path, own: Sequence[str] = ()) -> int:
    """Search, or continue a search; returns its exit code. Raises UsageError, TargetError, and
    RecordError where trials can be recorded no more.

    `own` are flags that are not those of a run.
    """
    state = SearchState(plan)
    first = state.next(1)
    assert first is not None
    checked = check_run([*trial_words(plan, first), f"--out={out / TRIALS}"], own)
    _require_searched(plan, checked.options)
    folder = SearchFolder(out, checked.engine.label, checked.heard(SET_BY_THE_SEARCH))
    folder.check(plan)
    with locked(folder.path, "search"):
        with recording(folder.path):
            folder.open(plan)
        return SaturationSearch(plan, folder, state, checked).make()


def _require_searched(plan: SearchPlan, options: Mapping[str, Any]) -> None:
    """Raise UsageError for what a search cannot have, whether a word, a file, the environment or
    the locustfile asks for it."""
    for name, reason in OTHER_ENDS.items():
        if options.get(name):
            raise UsageError(f"--{name} {options[name]} is not for a search: {reason}")
    if plan.space.by == "users" and options["arrivals"] != "closed":
        raise UsageError(
            f"--arrivals {options['arrivals']} is not for --by users: each user waits for its reply"
        )
    swarm = options["swarm"]
    if (shape := swarm["load_shape"]) and not swarm["shape_hears"]:
        raise UsageError(
            f"load shape {shape} is not for a search, which sets users and rate: leave it out"
        )


def trial_words(plan: SearchPlan, step: TrialStep) -> list[str]:
    """The command line of a trial behind `kvswarm run`, without its directory."""
    if plan.space.by == "users":
        users = f"{step.load:.0f}"
        load = [f"--users={users}", *_unless(plan.words, "--spawn-rate", "-r", users)]
    else:
        load = [f"--rate={Decimal(f'{step.load:g}'):f}", *_unless(plan.words, "--users", "-u", "0")]
    ours = [f"--run-time={step.seconds}s", f"--seed={step.seed}", "--max-failures=100"]
    return [*plan.words, *load, *ours]


def _unless(words: Sequence[str], long: str, short: str, value: str) -> list[str]:
    """The option, where nothing else says it."""
    return [] if is_given(words, long, short) else [f"{long}={value}"]


@dataclass(slots=True)
class SaturationSearch:
    """A search that may begin: its options were checked. `fault` says what ended it early."""

    plan: SearchPlan
    folder: SearchFolder
    state: SearchState
    checked: CheckedRun
    fault: str = ""
    code: int = DONE

    def make(self) -> int:
        """Make what is missing, then tell what was found."""
        for step, run in self.folder.finished:
            self._take(step, run)
        if self.state.trials:
            say(f"{len(self.state.trials)} trials are there")
        ending: Ending = self.state.ending
        if self._next is not None:
            asyncio.run(require_services([self.checked]))
            say(plan_line(self.plan))
            if self.checked.target_run is None:
                say("a host keeps what it has cached from trial to trial: rates may be too high")
            ending = asyncio.run(self._search())
        lines = list(result_lines(self.state, ending))
        tell("\n".join(lines))
        with recording(self.folder.path):
            self.folder.write_table(self.state)
            self.folder.write_result(self.state, ending, lines)
        if self.fault:
            tell(self.fault)
        self._draw()
        return self.code or (DONE if self.state.bracket.below else FAILED)

    @property
    def _next(self) -> TrialStep | None:
        return self.state.next(self.folder.next_number)

    async def _search(self) -> Ending:
        with scratch_folder() as scratch:
            with interruptible() as interruption:
                logs = self.folder.path / "engine"
                try:
                    started = run_series(self.checked, scratch, logs, interruption)
                    async with started as series:
                        ending = await self._trials(series)
                except TargetError as error:
                    self.fault, self.code = str(error), error.exit_code
                    ending = "target"
            if interruption.signal_number and self._next is not None:
                self.code = 128 + interruption.signal_number
                ending = "stopped"
        return ending

    async def _trials(self, series: RunSeries) -> Ending:
        """Until the search is over or cannot go on."""
        while (step := self._next) is not None:
            words, run = trial_words(self.plan, step), self.folder.run(step)
            with recording(run):
                run.mkdir()
                (run / "engine").symlink_to(Path("..", "..", "engine"))
            code = await series.run([*words, f"--out={run}"], run)
            if series.interruption.signal_number:
                return "stopped"
            if (ending := self._fault(code, run)) is not None:
                return ending
            with recording(run):
                self.folder.note(step)
            self._take(step, run)
            self._tell(step)
        return self.state.ending

    def _fault(self, code: int, run: Path) -> Ending | None:
        """Why the search cannot go on after a run, None where it can. Raises RecordError."""
        if code == UNRECORDED:
            raise unrecorded(run)
        summary = read_object(run / SUMMARY_JSON)
        if code == WRONG_USE or not summary:
            with recording(run):
                said = last_line((run / SWARM_LOG).read_text(encoding="utf-8", errors="replace"))
            if not self.state.trials:
                raise UsageError(said)
            self.fault, self.code = f"{run}: {said}", TARGET_DIED  # the options were right before
            return "target"
        faults = "; ".join(map(str, faults_of(read_object(run / RUN_JSON), summary)))
        if not faults:
            return None
        self.fault = f"{run}: {faults}"
        self.code = SATURATED if summary["client_saturated"] else TARGET_DIED
        return "client" if self.code == SATURATED else "target"

    def _take(self, step: TrialStep, run: Path) -> None:
        is_open = self.plan.space.by == "rate"
        trial = read_trial(run, step.load, step.seconds, is_open, self.plan.warm_up_s)
        self.state.add(step, trial)

    def _tell(self, step: TrialStep) -> None:
        _, trial = self.state.trials[-1]
        say(trial_line(step, trial, self.state.judgements[step.load], self.plan))
        with recording(self.folder.path):
            self.folder.write_table(self.state)

    def _draw(self) -> None:
        if not self.state.trials:
            return
        try:
            from dashboards.figures.saturation import draw
            from dashboards.figures.style import save_svg
        except ModuleNotFoundError as error:
            say(
                f"no picture: {error.name} is not installed. After {install_command('report')}"
                " the same command draws it"
            )
            return
        bracket = self.state.bracket
        ends = tuple(end.load if end else None for end in (bracket.below, bracket.above))
        figure = draw(points_of(self.state), self.plan.objective.latency, self.plan.space, ends)
        with recording(self.folder.path):
            save_svg(figure, self.folder.path / PICTURE)
        tell(f"Table: {self.folder.path / 'trials.csv'}, picture: {self.folder.path / PICTURE}")
        draw_series(self.folder.path)
