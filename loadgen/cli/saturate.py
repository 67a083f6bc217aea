"""`kvswarm saturate`: the highest load that meets an objective."""

import argparse
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from loadgen.errors import UsageError
from loadgen.launch.arguments import CommandParser, first_word, is_given, needs, parse_run
from loadgen.launch.configured import setting
from loadgen.runs.directory import DEFAULT_FILE

if TYPE_CHECKING:
    from loadgen.saturate.search_state import SearchPlan

ARRIVALS = ("poisson", "constant", "gamma")
OURS = {
    "--rate": "the search sets it",
    "--worker": "each trial is a run of its own",
    "--run-time": "give --trial",
    "-t": "give --trial",
}
"""Options of `kvswarm run` that are not for a search, and why."""
USERS = {"--users": "the search sets it", "-u": "the search sets it"}
_NUMBER = r"(\d+\.?\d*|\.\d+)"
_DURATION = re.compile(rf"{_NUMBER}\s*(s|m|)")
_RATE = re.compile(rf"{_NUMBER}(?:/s)?")
_PERCENT = re.compile(rf"{_NUMBER}\s*%?")


def saturate_command(arguments: list[str]) -> int:
    """Search, or continue a search; returns its exit code. Raises UsageError, TargetError."""
    with needs("compare"):
        from loadgen.launch.search import search

        return search(*parse_search(arguments), own=list(_parser()._option_string_actions))


def parse_search(arguments: list[str]) -> "tuple[SearchPlan, Path]":
    """What to look for, and the directory for it. Raises UsageError."""
    parsed, words = _parse(arguments)
    return _plan(parsed, words), parsed.out or parse_run("run", words).out


def _plan(parsed: argparse.Namespace, words: Sequence[str]) -> "SearchPlan":
    from loadgen.saturate.objective import Objective
    from loadgen.saturate.search import Space
    from loadgen.saturate.search_state import SearchPlan

    return SearchPlan(
        objective=Objective.parse(",".join(parsed.slo)),
        space=Space(parsed.by, parsed.first, parsed.last, parsed.tolerance / 100),
        trial_s=parsed.trial,
        most_trials=parsed.max_trials,
        seed=parsed.seed,
        warm_up_s=parsed.warm_up,
        words=words,
    )


def _parse(arguments: list[str]) -> tuple[argparse.Namespace, list[str]]:
    """Ours, and the words of `kvswarm run` that all trials share. Raises UsageError."""
    file, arguments = first_word(arguments, DEFAULT_FILE)
    parsed, rest = _parser().parse_known_args(arguments)
    if not any(parsed.slo or ()):
        raise UsageError('no objective: give --slo, as --slo "ttft_ms.p95<=500, errors<=0.1%"')
    refused = OURS | (USERS if parsed.by == "users" else {})
    for flag, reason in refused.items():
        if is_given(rest, flag):
            raise UsageError(f"{flag} is not for a search: {reason}")
    if parsed.by == "rate":
        arrivals = f"--arrivals={_arrivals(parsed, rest)}"
        return parsed, [file, *rest, arrivals, *_configured(rest, "users", "-u")]
    if parsed.arrivals is not None:
        raise UsageError("--arrivals is not for --by users: each user waits for its reply")
    return parsed, [file, *rest, *_configured(rest, "spawn-rate", "-r")]


def _configured(rest: Sequence[str], name: str, short: str) -> list[str]:
    """An option that only a file or the environment says, as a word: another value of it is another
    search."""
    told = None if is_given(rest, f"--{name}", short) else setting(rest, name)
    return [] if told is None else [f"--{name}={told}"]


def _arrivals(parsed: argparse.Namespace, rest: Sequence[str]) -> str:
    """What is given, else what a file or the environment says. Raises UsageError."""
    arrivals = parsed.arrivals or setting(rest, "arrivals") or ARRIVALS[0]
    if arrivals not in ARRIVALS:
        raise UsageError(f"--arrivals {arrivals} has no rate: give {', '.join(ARRIVALS)}")
    return str(arrivals)


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
    parser = CommandParser(
        prog="kvswarm saturate",
        usage="kvswarm saturate [FILE] --target NAME | --host URL --slo LIMITS [options]"
        " [any option of kvswarm run]",
        description="Finds the highest rate, or number of users, that meets an objective. The same"
        " command with the same --out continues a search that was stopped.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--slo", action="append", metavar="LIMITS", help='as "ttft_ms.p95<=500, errors<=0.1%%"')
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
    add(
        "--warm-up",
        "--warmup",
        type=_seconds,
        metavar="TIME",
        help="left out of each trial (default: found)",
    )
    add("--max-trials", type=int, default=24, help="most trials (default: 24)")
    add("--arrivals", choices=ARRIVALS, help="by rate (default: poisson)")
    add("--seed", type=int, default=0, help="of the first trial at each load (default: 0)")
    add("--out", type=Path, metavar="DIR", help="default: runs/TIME-NAME")
    return parser
