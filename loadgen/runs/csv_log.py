"""A CSV file that grows while the run goes on and survives a crash of the process."""

import csv
import io
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from types import NoneType
from typing import Any, TextIO

_BEGINNINGS = ("=", "+", "-", "@", "\t", "\r")


def without_formula(text: str) -> str:
    """`text` behind an apostrophe where a spreadsheet would take it for a formula.

    Different texts stay different: one that has its apostrophe already gets another.
    """
    return f"'{text}" if text.lstrip("'").startswith(_BEGINNINGS) else text


def with_formula(cell: str) -> str:
    """The text that `without_formula` made the cell of."""
    is_guarded = cell.startswith("'") and without_formula(cell[1:]) == cell
    return cell[1:] if is_guarded else cell


def to_csv(rows: Iterable[Sequence[Any]]) -> str:
    """Rows as CSV text; None becomes an empty cell, booleans `true` and `false`, floats short.

    Of text nothing is a formula.
    """
    cells = _CELLS
    return "".join([",".join([cells[type(v)](v) for v in row]) + "\n" for row in rows])


def _text(value: str) -> str:
    return value if value.isalnum() else _odd_text(value)


@lru_cache(maxsize=4096)
def _odd_text(value: str) -> str:
    """Most texts of a run come again and again: contexts, questions, users."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow([without_formula(value), ""])
    return text.getvalue()[: -len(",\n")]


def _float(value: float) -> str:
    return f"{value:.6f}".rstrip("0").rstrip(".")


class _Cells(dict[type, Callable[[Any], str]]):
    """How each kind of value is written; a subclass as what it is one of, others as `str` does."""

    def __missing__(self, kind: type) -> Callable[[Any], str]:
        known = [self[base] for base in kind.__mro__ if base in self]
        self[kind] = known[0] if known else str
        return self[kind]


_CELLS = _Cells(
    {
        str: _text,
        float: _float,
        int: str,
        bool: lambda value: "true" if value else "false",
        NoneType: lambda value: "",
    }
)


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
