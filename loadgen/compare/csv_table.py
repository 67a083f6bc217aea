"""A CSV file as columns, with errors that name the file and the line."""

import csv
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from loadgen.compare.series import Floats
from loadgen.errors import UsageError


@dataclass(frozen=True, slots=True)
class CsvTable:
    """A header and the rows below it."""

    path: Path
    header: tuple[str, ...]
    rows: Sequence[Sequence[str]]

    @classmethod
    def read(cls, path: Path) -> "CsvTable":
        """Raises UsageError. A last row that was not written to its end is left out."""
        try:
            with path.open(encoding="utf-8-sig", newline="") as file:
                header, *rows = csv.reader(file)
        except (OSError, UnicodeDecodeError, csv.Error) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise UsageError(f"{path} cannot be read as CSV ({reason})") from None
        except ValueError:
            raise UsageError(f"{path} is empty: name a file with a header and rows") from None
        if rows and len(rows[-1]) < len(header):
            rows.pop()
        for number, row in enumerate(rows, 2):
            if len(row) != len(header):
                raise UsageError(f"{path}, row {number}: {len(row)} cells, header {len(header)}")
        return cls(path, tuple(header), rows)

    def has(self, columns: Sequence[str]) -> bool:
        """Whether the header names all of them."""
        return set(columns) <= set(self.header)

    def text(self, column: str) -> list[str]:
        """A column as it stands."""
        index = self.header.index(column)
        return [row[index] for row in self.rows]

    def numbers(self, column: str) -> Floats:
        """A column of numbers, NaN where a cell is empty or `N/A`. Raises UsageError."""
        found = []
        for number, cell in enumerate(self.text(column), 2):
            try:
                found.append(float(cell) if cell and cell != "N/A" else math.nan)
            except ValueError:
                raise UsageError(
                    f"{self.path}, row {number}: {column} is {cell[:40]!r}, which is no number"
                ) from None
        return np.asarray(found, dtype=np.float64)

    def where(self, keep: Callable[[Sequence[str]], bool]) -> "CsvTable":
        """Only the rows to keep."""
        return CsvTable(self.path, self.header, [row for row in self.rows if keep(row)])
