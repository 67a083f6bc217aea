"""`kvswarm report`: one run, or several beside each other, as a page to read."""

import argparse
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from loadgen.cli.compare import noise_file, require_different, vary_of
from loadgen.errors import UsageError
from loadgen.launch.arguments import CommandParser, needs

if TYPE_CHECKING:
    from loadgen.compare.noise import Noise

MOST_RUNS = 8
FILE_NAME = "report.html"


def report_command(arguments: list[str]) -> int:
    """Write the page and print its path. Raises UsageError."""
    parsed = _parser().parse_args(arguments)
    with needs("report"):
        path = _written(parsed)
    print(str(path).encode(errors="backslashreplace").decode())
    return 0


def _written(parsed: argparse.Namespace) -> Path:
    from dashboards.report.page import MARK, make_page
    from dashboards.report.run_files import find_runs

    require_different(parsed.runs)
    runs = find_runs(parsed.runs)
    if len(runs) > MOST_RUNS:
        raise UsageError(f"{len(runs)} runs are too many for a page: name at most {MOST_RUNS}")
    path = parsed.out or _default(runs, parsed.runs)
    _require_ours(path, MARK)
    page = make_page(runs, vary_of(parsed.vary), _noise() if len(runs) > 1 else None)
    try:
        _write(path, page.encode(errors="replace"))
    except OSError as error:
        raise UsageError(f"{path} cannot be written ({error.strerror}): name another") from None
    return path


def _write(path: Path, page: bytes) -> None:
    """An earlier page stays whole until the new one is. Raises OSError."""
    file = Path(os.path.realpath(path))  # a link stays a link
    if _is_stream(path) or not _may_replace(file):
        path.write_bytes(page)
        return
    partial = file.with_name(f".report-{os.getpid()}.partial")
    try:
        partial.write_bytes(page)
        if file.exists():
            shutil.copymode(file, partial)
        partial.replace(file)
    finally:
        partial.unlink(missing_ok=True)


def _is_stream(path: Path) -> bool:
    """A device or pipe: it is written through, and reading from it could wait for ever."""
    return path.is_char_device() or path.is_fifo()


def _may_replace(file: Path) -> bool:
    """Replacing needs leave for the folder, and must not get around a page that is read-only."""
    return os.access(file.parent, os.W_OK) and (not file.exists() or os.access(file, os.W_OK))


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
    if str(path) == "-":
        raise UsageError(f"-o - names no file: give a name, such as {FILE_NAME}")
    if path.exists() and not _is_stream(path) and mark not in _beginning(path):
        raise UsageError(f"{path} is no report of kvswarm and is left as it is: name another -o")


def _beginning(path: Path) -> str:
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return file.read(2000)
    except OSError:
        return ""


def _noise() -> "Noise | None":
    """The spread between runs that `kvswarm noise` has kept, which `compare` uses too."""
    from loadgen.compare.noise import read_noise

    return read_noise(noise_file()) if noise_file().is_file() else None


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
    add("--vary", action="append", metavar="NAME", help="what is under test (default: target)")
    return parser
