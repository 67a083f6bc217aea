"""`kvswarm report`: one run, or several beside each other, as a page to read."""

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from loadgen.cli.arguments import Parser
from loadgen.cli.compare import require_different, vary_of
from loadgen.errors import UsageError

if TYPE_CHECKING:
    from loadgen.compare.noise import Noise

MOST_RUNS = 8
FILE_NAME = "report.html"


def report_command(arguments: list[str]) -> int:
    """Write the page and print its path. Raises UsageError."""
    parsed = _parser().parse_args(arguments)
    try:
        path = _written(parsed)
    except ModuleNotFoundError as error:
        raise _not_installed(error) from error
    print(path)
    return 0


def _not_installed(error: ModuleNotFoundError) -> UsageError:
    return UsageError(
        f"this needs {error.name}, which is not installed: pip install 'kvswarm[report]'"
    )


def _written(parsed: argparse.Namespace) -> Path:
    from dashboards.report.page import MARK, make_page
    from dashboards.report.run_files import find_runs

    require_different(parsed.runs)
    runs = find_runs(parsed.runs)
    if len(runs) > MOST_RUNS:
        raise UsageError(f"{len(runs)} runs are too many for a page: name at most {MOST_RUNS}")
    path = parsed.out or _default(runs, parsed.runs)
    _require_ours(path, MARK)
    page = make_page(runs, vary_of(parsed.vary), _noise())
    try:
        path.write_text(page, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{path} cannot be written ({error.strerror}): name another") from None
    return path


def _default(runs: Sequence[Path], named: Sequence[Path]) -> Path:
    """Inside the only run, else inside what holds all of them."""
    if len(runs) == 1:
        return runs[0] / FILE_NAME
    if len(named) == 1:
        return named[0] / FILE_NAME
    return Path(os.path.commonpath([run.resolve() for run in runs])) / FILE_NAME


def _require_ours(path: Path, mark: str) -> None:
    """Raises UsageError where something else than a report stands: an earlier one is renewed."""
    if path.is_dir():
        raise UsageError(f"{path} is a directory: name a file, such as {path / FILE_NAME}")
    if path.exists() and mark not in _beginning(path):
        raise UsageError(f"{path} is no report of kvswarm and is left as it is: name another -o")


def _beginning(path: Path) -> str:
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return file.read(2000)
    except OSError:
        return ""


def _noise() -> "Noise | None":
    """The spread between runs that `kvswarm noise` has kept, which `compare` uses too."""
    from loadgen.cli.noise import noise_file
    from loadgen.compare.noise import read_noise

    return read_noise(noise_file()) if noise_file().is_file() else None


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
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
    add("--vary", action="append", metavar="NAME", help="what is under test (default: target)")
    return parser
