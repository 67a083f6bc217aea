"""A CSV file that grows while the run goes on and survives a crash of the process."""

import csv
import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, TextIO

from loadgen.runs.formula import without_formula


def to_csv(rows: Iterable[Sequence[Any]]) -> str:
    """Rows as CSV text; None becomes an empty cell, booleans `true` and `false`, floats short.

    Of text nothing is a formula.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows([_cell(value) for value in row] for row in rows)
    return text.getvalue()


def _cell(value: Any) -> Any:
    if isinstance(value, str):
        return without_formula(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:.6f}".rstrip("0").rstrip(".")
    return value


class CsvLog:
    """Appends rows under a header; `flush` hands them to the operating system."""

    def __init__(self, path: Path, columns: Sequence[str]) -> None:
        self.path = path
        self._file: TextIO = path.open("w", encoding="utf-8", newline="")
        self._file.write(to_csv([columns]))
        self._file.flush()

    def append(self, rows: Iterable[Sequence[Any]]) -> None:
        """Add rows of values in the order of the columns."""
        self._file.write(to_csv(rows))

    def append_text(self, text: str) -> None:
        """Add rows that are CSV text already, as a worker sends them."""
        self._file.write(text)

    def flush(self) -> None:
        """Make what was appended survive a crash of this process."""
        if not self._file.closed:
            self._file.flush()

    def close(self) -> None:
        """Flush and close; may be called again."""
        self._file.close()
