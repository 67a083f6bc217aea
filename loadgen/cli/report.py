"""`kvswarm report`: one run, or several beside each other, as a page to read."""

import argparse
import json
import os
from collections.abc import Sequence
from pathlib import Path

from loadgen.cli.compare import noise_file, require_different, vary_of
from loadgen.errors import UsageError
from loadgen.launch.arguments import CommandParser, needs
from loadgen.launch.page_file import FILE_NAME, page_of_series, require_ours, write_page

MOST_RUNS = 8
EXPORT, EXPORT_NAME = "benchmark-report", "benchmark_report.json"


def report_command(arguments: list[str]) -> int:
    """Write the page and print its path. Raises UsageError."""
    parsed = _parser().parse_args(arguments)
    with needs("report"):
        path = _exported(parsed) if parsed.format == EXPORT else _written(parsed)
    print(str(path).encode(errors="backslashreplace").decode())
    return 0


def _written(parsed: argparse.Namespace) -> Path:
    from dashboards.report.page import make_page
    from dashboards.report.run_files import find_runs
    from loadgen.compare.noise import read_noise

    if len(parsed.runs) == 1 and (page := page_of_series(parsed.runs[0])):
        return write_page(parsed.out or parsed.runs[0] / FILE_NAME, page)
    require_different(parsed.runs)
    runs = find_runs(parsed.runs)
    if len(runs) > MOST_RUNS:
        raise UsageError(f"{len(runs)} runs are too many for a page: name at most {MOST_RUNS}")
    path = parsed.out or _default(runs, parsed.runs)
    require_ours(path)
    noise = read_noise(noise_file()) if len(runs) > 1 and noise_file().is_file() else None
    return write_page(path, make_page(runs, vary_of(parsed.vary), noise))


def _exported(parsed: argparse.Namespace) -> Path:
    """One run in a format of others."""
    from loadgen.runs.benchmark_report import KEYWORD, benchmark_report

    if len(parsed.runs) > 1:
        raise UsageError(f"--format {EXPORT} is of one run: give a single RUN")
    (run,) = parsed.runs
    path: Path = parsed.out or run / EXPORT_NAME
    text = json.dumps(benchmark_report(run), indent=2, ensure_ascii=False, allow_nan=False)
    return write_page(path, f"{text}\n", KEYWORD)


def _default(runs: Sequence[Path], named: Sequence[Path]) -> Path:
    """Inside the only run, else inside what holds all of them."""
    if len(runs) == 1:
        return runs[0] / FILE_NAME
    if len(named) == 1:
        return named[0] / FILE_NAME
    return Path(os.path.commonpath([run.resolve() for run in runs])) / FILE_NAME


def _parser() -> argparse.ArgumentParser:
    parser = CommandParser(
        prog="kvswarm report",
        usage="kvswarm report RUN [RUN…] [-o FILE]",
        description="One page of HTML that needs nothing else: a run, or several beside the first.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("runs", nargs="+", type=Path, metavar="RUN", help="a run, or a directory that holds some")
    add(
        "-o",
        "--out",
        type=Path,
        metavar="FILE",
        help="default: report.html in the run's directory, or in that which holds all runs",
    )
    add(
        "--format",
        choices=("html", EXPORT),
        default="html",
        help=f"{EXPORT}: JSON as llm-d's tools read it, {EXPORT_NAME} by default",
    )
    add("--vary", action="append", metavar="NAME", help="what is under test (default: target)")
    return parser
