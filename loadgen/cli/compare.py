"""`kvswarm compare`: two runs, or two sets of repeats, set against each other."""

import argparse
import errno
import math
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from loadgen.errors import KvswarmError, OutputError, UsageError
from loadgen.launch.arguments import CommandParser, needs
from loadgen.targets.hardware import home
from rag_store.cli.output import width_of

if TYPE_CHECKING:
    from loadgen.compare.comparison import Comparison
    from loadgen.compare.noise import Noise
    from loadgen.compare.run import ComparedRun

SOFTWARE_ERROR = 70
"""`EX_SOFTWARE` of sysexits.h."""
AUTO = "auto"
FORMATS = ("table", "json", "markdown", "junit")


def compare_command(arguments: list[str]) -> int:
    """Print the comparison; the exit code is the gate's, 0 without one. Raises UsageError.

    A fault of our own must not look like a broken limit: it is said with its place, with code 70.
    """
    try:
        return _gated(arguments)
    except OutputError:  # `main` says so
        return SOFTWARE_ERROR
    except KvswarmError:
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
            raise  # `main` says which name
        print(f"kvswarm: compare failed, nothing is decided: {_placed(error)}", file=sys.stderr)
        return SOFTWARE_ERROR


def _placed(error: Exception) -> str:
    frame = traceback.extract_tb(error.__traceback__)[-1]
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text} ({Path(frame.filename).name}, line {frame.lineno})"


def _gated(arguments: list[str]) -> int:
    parsed = _parser().parse_args(arguments)
    base, new = _sides(parsed)
    with needs("compare"):
        comparison = _compare(parsed, base, new)
    _tell(_formatted(comparison, parsed.format))
    return comparison.exit_code


def _tell(text: str) -> None:
    """Print; a reader that leaves, as `head` does, changes nothing of the gate's verdict."""
    try:
        print(text, end="", flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def require_different(paths: Sequence[Path]) -> None:
    """Raises UsageError where a run is given twice: that is no repeat, nor proof of anything."""
    resolved = [path.resolve() for path in paths]
    for path, place in zip(paths, resolved, strict=True):
        if resolved.count(place) > 1:
            raise UsageError(f"{path} is given {resolved.count(place)} times: name each run once")


def _compare(parsed: argparse.Namespace, base: list[Path], new: list[Path]) -> "Comparison":
    from loadgen.compare.comparison import compare
    from loadgen.compare.gate import parse_gate
    from loadgen.compare.metrics import parse_statistic
    from loadgen.compare.run_reader import common_warmup_s, read_run
    from loadgen.compare.sides import Sides

    if parsed.require_proof and parsed.gate is None:
        raise UsageError("--require-proof is of limits: give them with --gate")
    limits = parse_gate(parsed.gate) if parsed.gate is not None else ()
    named = () if parsed.metrics is None else parsed.metrics.split(",")
    statistics = [parse_statistic(each) for each in named]
    paths = [*base, *new]
    require_different(paths)
    warmup_s = parsed.warmup if isinstance(parsed.warmup, float) else common_warmup_s(paths)
    runs = [read_run(path, parsed.row, warmup_s) for path in paths]
    found_s = max(run.found_warmup_s for run in runs)
    if parsed.warmup == AUTO and found_s > warmup_s:
        runs = [read_run(path, parsed.row, found_s) for path in paths]
    before, after = tuple(runs[: len(base)]), tuple(runs[len(base) :])
    noise = _noise(parsed, (*before, *after))
    sides, vary = Sides(before, after, noise), vary_of(parsed.vary)
    return compare(sides, statistics, limits, vary, parsed.require_proof)


def _noise(parsed: argparse.Namespace, runs: "tuple[ComparedRun, ...]") -> "Noise | None":
    """The file that was named; else the product's own, for runs of the machine it was made on."""
    from loadgen.compare.noise import read_noise

    if parsed.no_noise:
        return None
    if parsed.noise is not None:
        return read_noise(parsed.noise)
    if not noise_file().is_file():
        return None
    try:
        noise = read_noise(noise_file())
    except UsageError as error:
        raise UsageError(f"{error}, or go without by --no-noise") from None
    return noise if {run.machine for run in runs} == {noise.machine} else None


def noise_file() -> Path:
    """Where it is kept unless told otherwise."""
    return home() / "noise.json"


def vary_of(named: list[str] | None) -> tuple[str, ...]:
    """The names of `--vary`, the target without any."""
    return (
        tuple(name.strip() for each in named for name in each.split(",")) if named else ("target",)
    )


def _seconds(text: str) -> float | str:
    if text == AUTO:
        return AUTO
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise UsageError(f"--warmup {text!r} is no number of seconds: give one from 0 on, or auto")
    return seconds


def _sides(parsed: argparse.Namespace) -> tuple[list[Path], list[Path]]:
    if parsed.base is None and parsed.new is None and len(parsed.runs) == 2:
        return [parsed.runs[0]], [parsed.runs[1]]
    if parsed.base and parsed.new and not parsed.runs:
        return parsed.base, parsed.new
    raise UsageError(
        "give BASE and NEW, or --base RUN… and --new RUN…: see `kvswarm compare --help`"
    )


def _formatted(comparison: "Comparison", form: str) -> str:
    from loadgen.compare.formats import to_json, to_junit, to_markdown, to_table

    if form == "table":
        is_terminal = sys.stdout is not None and sys.stdout.isatty()
        return to_table(comparison, is_terminal, width_of(sys.stdout))
    return {"json": to_json, "markdown": to_markdown, "junit": to_junit}[form](comparison)


def _parser() -> argparse.ArgumentParser:
    parser = CommandParser(
        prog="kvswarm compare",
        usage="kvswarm compare BASE NEW | --base RUN… --new RUN… [options]",
        description="Exit code: 0 done or within the gate, 1 a limit is broken, 2 wrong use or not"
        " comparable, 4 the data cannot decide, 70 a fault of compare itself.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("runs", nargs="*", type=Path, help="run directories or exported CSV files")
    add("--base", nargs="+", type=Path, metavar="RUN", help="several repeats of the base")
    add("--new", nargs="+", type=Path, metavar="RUN", help="several repeats of the new side")
    add("--gate", help="limits such as 'ttft_ms.p95<=+10%%, errors<=0.1%%', or a TOML file")
    add(
        "--require-proof",
        action="store_true",
        help="a limit passes only where the whole interval keeps it",
    )
    add("--metrics", help="what to compare, e.g. ttft_ms.p95,errors (default: the usual ones)")
    add("--vary", action="append", metavar="NAME", help="what is under test (default: target)")
    add(
        "--row",
        default="Aggregated",
        help="the row of Locust's files, by name or as 'GET /x' (default: Aggregated)",
    )
    add(
        "--warmup",
        type=_seconds,
        metavar="SECONDS",
        help="left out at the start of every run (default: the longest --warmup of the runs; auto:"
        " or the longest that is found)",
    )
    add("--noise", type=Path, metavar="FILE", help="the spread between runs, by `kvswarm noise`")
    add("--no-noise", action="store_true", help="leave the spread between runs out")
    add("--format", choices=FORMATS, default="table", help="default: table")
    return parser
