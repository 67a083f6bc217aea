"""`kvswarm saturate`: the highest load that meets an objective."""

import argparse
import asyncio
import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from loadgen.cli.arguments import DEFAULT_FILE, SHARED_FILES, Parser, parse_run
from loadgen.cli.cell_check import last_line
from loadgen.cli.interruption import interruptible
from loadgen.cli.notice import say
from loadgen.cli.trial_bench import CheckedRun, TrialBench, check_run, trial_bench
from loadgen.compare.json_object import read_object
from loadgen.compare.soundness import faults_of
from loadgen.errors import TargetError, UsageError
from loadgen.runs.directory import RUN_JSON
from loadgen.runs.exit_code import DONE, FAILED, SATURATED, TARGET_DIED, WRONG_USE

if TYPE_CHECKING:
    from loadgen.saturate.course import Course, Ending, Step
    from loadgen.saturate.folder import SearchFolder
    from loadgen.saturate.plan import Plan

SUMMARY_JSON, PICTURE = "summary.json", "saturation.svg"
ARRIVALS = ("poisson", "constant", "gamma")
OURS = {
    "--rate": "the search sets it",
    "--run-time": "give --trial",
    "-t": "give --trial",
    "--batches": "a run ends by its time",
    "--trace": "a trace has its own times",
    **dict.fromkeys(SHARED_FILES, "each trial would overwrite it"),
}
"""Options of `kvswarm run` that are not for a search, and why."""
USERS = {"--users": "the search sets it", "-u": "the search sets it"}
_NUMBER = r"(\d+\.?\d*|\.\d+)"
_DURATION = re.compile(rf"{_NUMBER}\s*(s|m|)")
_RATE = re.compile(rf"{_NUMBER}(?:/s)?")
_PERCENT = re.compile(rf"{_NUMBER}\s*%?")


def saturate_command(arguments: list[str]) -> int:
    """Search, or continue a search; returns its exit code. Raises UsageError, TargetError."""
    try:
        return _saturate(arguments)
    except ModuleNotFoundError as error:
        raise UsageError(
            f"this needs {error.name}, which is not installed: pip install 'kvswarm[compare]'"
        ) from error


def _saturate(arguments: list[str]) -> int:
    from loadgen.saturate.course import Course
    from loadgen.saturate.folder import SearchFolder

    parsed, words = _parse(arguments)
    plan = _plan(parsed, words)
    folder = SearchFolder(parsed.out or parse_run("run", words).out)
    folder.check(plan)
    course = Course(plan)
    first = course.next(1)
    assert first is not None
    checked = check_run([*_words(plan, parsed, first), f"--out={folder.path}"])
    with folder.locked():
        folder.open(plan)
        return _Search(plan, parsed, folder, course, checked).make()


@dataclass(slots=True)
class _Search:
    """A search that may begin: its options were checked. `fault` says what ended it early."""

    plan: "Plan"
    parsed: argparse.Namespace
    folder: "SearchFolder"
    course: "Course"
    checked: CheckedRun
    fault: str = ""
    code: int = DONE

    def make(self) -> int:
        """Make what is missing, then tell what was found."""
        from loadgen.saturate.wording import plan_line, result_lines

        for step, run in self.folder.finished:
            self._take(step, run)
        if self.course.trials:
            say(f"{len(self.course.trials)} trials are there")
        ending: Ending = self.course.ending
        if self._next is not None:
            say(plan_line(self.plan))
            ending = asyncio.run(self._search())
        self.folder.write_table(self.course)
        lines = list(result_lines(self.course, ending))
        self.folder.write_result(self.course, ending, lines)
        print("\n".join(lines))
        if self.fault:
            print(self.fault)
        self._draw()
        return self.code or (DONE if self.course.bracket.below else FAILED)

    @property
    def _next(self) -> "Step | None":
        return self.course.next(self.folder.next_number)

    async def _search(self) -> "Ending":
        with tempfile.TemporaryDirectory(prefix="kvswarm-") as scratch:
            with interruptible() as interruption:
                logs = self.folder.path / "engine"
                try:
                    async with trial_bench(
                        self.checked, Path(scratch), logs, interruption
                    ) as bench:
                        ending = await self._trials(bench)
                except TargetError as error:
                    self.fault, self.code = str(error), error.exit_code
                    ending = "target"
            if interruption.signal_number:
                self.code = 128 + interruption.signal_number
                ending = "stopped"
        return ending

    async def _trials(self, bench: TrialBench) -> "Ending":
        """Until the search is over or cannot go on."""
        while (step := self._next) is not None:
            words, run = _words(self.plan, self.parsed, step), self.folder.run(step)
            run.mkdir(parents=True)
            (run / "engine").symlink_to(Path("..", "..", "engine"))
            code = await bench.run(words, run)
            if bench.interruption.signal_number:
                return "stopped"
            if (ending := self._fault(code, run)) is not None:
                return ending
            self.folder.note(step)
            self._take(step, run)
            self._tell(step)
        return self.course.ending

    def _fault(self, code: int, run: Path) -> "Ending | None":
        """Why the search cannot go on after a run, None where it can."""
        from loadgen.sweep.table import SWARM_LOG

        summary = read_object(run / SUMMARY_JSON)
        if code == WRONG_USE or not summary:
            said = (run / SWARM_LOG).read_text(encoding="utf-8", errors="replace")
            raise UsageError(last_line(said))
        faults = "; ".join(map(str, faults_of(read_object(run / RUN_JSON), summary)))
        if not faults:
            return None
        self.fault = f"{run}: {faults}"
        self.code = SATURATED if summary["client_saturated"] else TARGET_DIED
        return "client" if self.code == SATURATED else "target"

    def _take(self, step: "Step", run: Path) -> None:
        from loadgen.saturate.trial import read_trial

        is_open = self.plan.space.by == "rate"
        trial = read_trial(run, step.load, step.seconds, is_open, self.plan.warm_up_s)
        self.course.add(step, trial)

    def _tell(self, step: "Step") -> None:
        from loadgen.saturate.wording import trial_line

        _, trial = self.course.trials[-1]
        say(trial_line(step, trial, self.course.judgements[step.load], self.plan))
        self.folder.write_table(self.course)

    def _draw(self) -> None:
        if not self.course.trials:
            return
        from loadgen.saturate.points import points_of

        try:
            from dashboards.figures.saturation import draw
            from dashboards.figures.style import save_svg
        except ModuleNotFoundError as error:
            say(
                f"no picture: {error.name} is not installed. After pip install 'kvswarm[report]'"
                " the same command draws it"
            )
            return
        bracket = self.course.bracket
        ends = tuple(end.load if end else None for end in (bracket.below, bracket.above))
        figure = draw(points_of(self.course), self.plan.objective.latency, self.plan.space, ends)
        save_svg(figure, self.folder.path / PICTURE)
        print(f"Table: {self.folder.path / 'trials.csv'}, picture: {self.folder.path / PICTURE}")


def _words(plan: "Plan", parsed: argparse.Namespace, step: "Step") -> list[str]:
    """The command line of a trial behind `kvswarm run`, without its directory."""
    if plan.space.by == "users":
        users = f"{step.load:.0f}"
        load = [f"--users={users}", *_unless(plan.words, "--spawn-rate", "-r", users)]
    else:
        load = [
            f"--arrivals={parsed.arrivals}",
            f"--rate={step.load:g}",
            *_unless(plan.words, "--users", "-u", "0"),
        ]
    ours = [f"--run-time={step.seconds}s", f"--seed={step.seed}", "--max-failures=100"]
    return [*plan.words, *load, *ours]


def _unless(words: Sequence[str], long: str, short: str, value: str) -> list[str]:
    return [] if _given(words, long, short) else [f"{long}={value}"]


def _given(words: Sequence[str], *flags: str) -> bool:
    """Whether one of these options is there: `--users 3`, `--users=3`, `-u 3` or `-u3`."""
    return any(
        word.partition("=")[0] in flags
        or (not word.startswith("--") and len(word) > 2 and word[:2] in flags)
        for word in words
    )


def _plan(parsed: argparse.Namespace, words: Sequence[str]) -> "Plan":
    from loadgen.saturate.objective import Objective
    from loadgen.saturate.plan import Plan
    from loadgen.saturate.space import Space

    return Plan(
        objective=Objective.parse(parsed.slo),
        space=Space(parsed.by, parsed.first, parsed.last, parsed.tolerance / 100),
        trial_s=parsed.trial,
        most_trials=parsed.max_trials,
        seed=parsed.seed,
        warm_up_s=parsed.warm_up,
        words=words,
    )


def _parse(arguments: list[str]) -> tuple[argparse.Namespace, list[str]]:
    """Ours, and the words of `kvswarm run` that all trials share. Raises UsageError."""
    file = DEFAULT_FILE
    if arguments and not arguments[0].startswith("-"):
        file, arguments = arguments[0], arguments[1:]
    parsed, rest = _parser().parse_known_args(arguments)
    if not parsed.slo:
        raise UsageError('no objective: give --slo, as --slo "ttft_ms.p95<=500, errors<=0.1%"')
    refused = OURS | (USERS if parsed.by == "users" else {})
    for flag, reason in refused.items():
        if _given(rest, flag):
            raise UsageError(f"{flag} is not for a search: {reason}")
    if parsed.by == "users" and parsed.arrivals is not None:
        raise UsageError("--arrivals is not for --by users: each user waits for its reply")
    parsed.arrivals = parsed.arrivals or ARRIVALS[0]
    return parsed, [file, *rest]


def _of(pattern: "re.Pattern[str]", text: str, kind: str) -> "re.Match[str]":
    found = pattern.fullmatch(text.strip())
    if found is None:
        raise UsageError(f"{text!r} is no {kind}")
    return found


def _rate(text: str) -> float:
    return float(_of(_RATE, text, "load: give a number, as --from 2")[1])


def _percent(text: str) -> float:
    return float(_of(_PERCENT, text, "tolerance: give percent, as --tolerance 5%")[1])


def _seconds(text: str) -> float:
    found = _of(_DURATION, text, "duration: give seconds, as --trial 30s, or minutes, as 2m")
    return float(found[1]) * (60 if found[2] == "m" else 1)


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="kvswarm saturate",
        usage="kvswarm saturate [FILE] --target NAME | --host URL --slo LIMITS [options]"
        " [any option of kvswarm run]",
        description="Finds the highest rate, or number of users, that meets an objective. The same"
        " command with the same --out continues a search that was stopped.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--slo", metavar="LIMITS", help='as "ttft_ms.p95<=500, errors<=0.1%%"')
    add("--by", choices=("rate", "users"), default="rate", help="what is raised (default: rate)")
    add("--from", dest="first", type=_rate, default=1.0, help="the lowest load (default: 1)")
    add("--to", dest="last", type=_rate, help="the highest (default: as far as it is met)")
    add(
        "--tolerance",
        type=_percent,
        default=5.0,
        metavar="PERCENT",
        help="of the bracket (default: 5%%)",
    )
    add(
        "--trial",
        type=_seconds,
        default=30.0,
        metavar="TIME",
        help="of a trial, at least (default: 30s)",
    )
    add("--warm-up", type=_seconds, help="seconds left out of each trial (default: found)")
    add("--max-trials", type=int, default=24, help="most trials (default: 24)")
    add("--arrivals", choices=ARRIVALS, help="by rate (default: poisson)")
    add("--seed", type=int, default=0, help="of the first trial at each load (default: 0)")
    add("--out", type=Path, metavar="DIR", help="default: runs/TIME-NAME")
    return parser
