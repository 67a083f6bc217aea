"""`kvswarm noise`: how much identical runs differ on this machine."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from loadgen.cli.compare import noise_file, require_different
from loadgen.errors import UsageError
from loadgen.launch.arguments import CommandParser, needs
from loadgen.launch.terminal import printable, tell

if TYPE_CHECKING:
    from loadgen.compare.noise import Noise


def noise_command(arguments: list[str]) -> int:
    """Measure it on finished runs, show and keep it. Raises UsageError."""
    parsed = _parser().parse_args(arguments)
    file = parsed.out or noise_file()
    with needs("compare"):
        noise = _measure(parsed, file)
    Console(highlight=False).print(_table(noise))
    kept = printable(str(file))
    tell(f"\nkept in {kept}: `kvswarm compare` adds it to single pairs of runs of this machine")
    return 0


def _measure(parsed: argparse.Namespace, file: Path) -> "Noise":
    from loadgen.compare.noise import measure_noise, write_noise
    from loadgen.compare.run_reader import read_run

    require_different(parsed.runs)
    runs = [read_run(path) for path in parsed.runs]
    for run in runs:
        if run.faults:
            raise UsageError(f"{run.name} shows no spread, {run.faults[0]}: leave it out")
    noise = measure_noise(runs)
    write_noise(noise, file)
    return noise


def _table(noise: "Noise") -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("")
    table.add_column("runs differ by", justify="right")
    table.add_column("beyond what they know", justify="right")
    from loadgen.compare.metrics import DEFAULTS

    for name in DEFAULTS:
        if name in noise.deviations:
            total, excess = noise.totals[name], noise.deviations[name]["log"]
            table.add_row(name, f"{100 * total:.1f} %", f"{100 * excess:.1f} %")
    return table


def _parser() -> argparse.ArgumentParser:
    parser = CommandParser(
        prog="kvswarm noise",
        usage="kvswarm noise RUN RUN RUN… [--out FILE]",
        description="Standard deviations between identical runs, best made in turn with others.",
        allow_abbrev=False,
    )
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="directories of runs")
    parser.add_argument("--out", type=Path, metavar="FILE", help="where to keep it")
    return parser
