"""Several runs side by side on the terminal."""

from collections.abc import Mapping
from pathlib import Path

from rich.console import Console

from loadgen.runs.side_by_side import side_by_side


def print_comparison(runs: Mapping[str, Path]) -> None:
    """Print a column for each run; nothing where none was finished."""
    if any((path / "summary.json").is_file() for path in runs.values()):
        print()
        Console(highlight=False).print(side_by_side(runs))
