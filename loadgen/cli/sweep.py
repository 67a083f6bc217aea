"""`kvswarm sweep`: a matrix of runs, made in turn, kept as one table."""

import argparse
from pathlib import Path

from loadgen.errors import UsageError
from loadgen.launch.arguments import CommandParser
from loadgen.launch.configured import setting
from loadgen.launch.page_file import draw_series
from loadgen.launch.sweep_run import SweepRun, make_sweep
from loadgen.launch.terminal import tell
from loadgen.runs.directory import recording, require_writable
from loadgen.runs.exit_code import DONE
from loadgen.scratch import expanded
from loadgen.sweep.definition import read_definition
from loadgen.sweep.table import CELLS, CELLS_CSV, write_table


def sweep_command(arguments: list[str]) -> int:
    """Make or continue a sweep, show what it would do, or rebuild its table."""
    parsed = _parser().parse_args(arguments)
    if parsed.table is not None:
        if parsed.file or parsed.out or parsed.dry_run:
            raise UsageError("--table DIR stands alone: leave out FILE.toml, --out and --dry-run")
        return _rebuild(parsed.table)
    if parsed.file is None:
        raise UsageError("no sweep to make: give FILE.toml, see `kvswarm sweep --help`")
    definition = read_definition(parsed.file)
    heard = setting((), "out")
    out = parsed.out or (expanded(heard) if heard else Path("runs") / definition.name)
    if not parsed.dry_run:
        return make_sweep(definition, out)
    SweepRun.plan(definition, out).show()
    return DONE


def _rebuild(directory: Path) -> int:
    if not (directory / CELLS).is_dir():
        raise UsageError(f"{directory} holds no sweep: name the directory that has cells in it")
    require_writable(directory, "--table")
    with recording(directory):
        cells = write_table(directory)
    tell(f"{len(cells)} runs: {directory / CELLS_CSV}")
    draw_series(directory)
    return DONE


def _parser() -> argparse.ArgumentParser:
    parser = CommandParser(
        prog="kvswarm sweep",
        usage="kvswarm sweep FILE.toml [--out DIR] [--dry-run] | --table DIR",
        description="Every combination of the options in FILE.toml, one run each. The same command"
        " continues a sweep that was stopped.",
        allow_abbrev=False,
    )
    parser.add_argument("file", nargs="?", type=Path, metavar="FILE.toml", help="the sweep")
    parser.add_argument("--out", type=Path, metavar="DIR", help="default: runs/NAME")
    parser.add_argument("--dry-run", action="store_true", help="check and show all, run nothing")
    parser.add_argument(
        "--table", type=Path, metavar="DIR", help="write its cells.csv and page anew"
    )
    return parser
