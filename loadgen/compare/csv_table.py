"""A CSV file as columns, with errors that name the file and the line."""

import csv
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from loadgen.compare.series import Floats
from loadgen.errors import UsageError

MOST = 1e30
"""No figure of a run is larger, and squares of sums of such are still finite."""


@dataclass(frozen=True, slots=True)
class CsvTable:
    """A header and the rows below it."""

    path: Path
    header: tuple[str, ...]
    rows: Sequence[Sequence[str]]

    @classmethod
    def read(cls, path: Path) -> "CsvTable":
        """The file as it stands. Raises UsageError."""
        try:
            with path.open(encoding="utf-8-sig", newline="") as file:
                header, *rows = csv.reader(file)
        except (OSError, UnicodeDecodeError, csv.Error) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise UsageError(f"{path} cannot be read as CSV ({reason})") from None
        except ValueError:
            raise UsageError(f"{path} is empty: name a file with a header and rows") from None
        return cls(path, tuple(header), rows)

    def whole(self) -> "CsvTable":
        """Without a last row that was not written to its end. Raises UsageError for any other row
        that is not as wide as the header."""
        width, rows = len(self.header), self.rows
        if rows and len(rows[-1]) < width:
            rows = rows[:-1]
        for number, row in enumerate(rows, 2):
            if len(row) != width:
                raise UsageError(f"{self.path}, row {number}: {len(row)} cells, header {width}")
        return CsvTable(self.path, self.header, rows)

    def has(self, columns: Sequence[str]) -> bool:
        """Whether the header names all of them."""
        return set(columns) <= set(self.header)

    def text(self, column: str) -> list[str]:
        """A column as it stands."""
        index = self.header.index(column)
        return [row[index] for row in self.rows]

    def numbers(self, column: str, least: float = 0.0) -> Floats:
        """A column of numbers, NaN where a cell is empty or `N/A`. Raises UsageError for what is
        no number, beyond `MOST` or below `least`."""
        found = []
        for number, cell in enumerate(self.text(column), 2):
            value = _number(cell)
            if value is None or abs(value) > MOST or value < least:
                raise UsageError(
                    f"{self.path}, row {number}: {column} is {cell[:40]!r}, which is no number from"
                    f" {max(least, -MOST):g} to {MOST:g}: correct it or leave the file out"
                )
            found.append(value)
        return np.asarray(found, dtype=np.float64)

    def known(self, column: str) -> Floats:
        """A column in which every row must have a number. Raises UsageError."""
        found = self.numbers(column)
        if np.isnan(found).any():
            raise UsageError(
                f"{self.path}: {column} is not known in every row: name a file as Locust wrote it"
            )
        return found

    def where(self, keep: Callable[[Sequence[str]], bool]) -> "CsvTable":
        """Only the rows to keep."""
        return CsvTable(self.path, self.header, [row for row in self.rows if keep(row)])


def _number(cell: str) -> float | None:
    """NaN for an empty cell or `N/A`, None for what is no number."""
    try:
        return float(cell) if cell and cell != "N/A" else math.nan
    except ValueError:
        return None
