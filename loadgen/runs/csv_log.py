"""A CSV file that grows while the run goes on and survives a crash of the process."""

import csv
import errno
import io
import os
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from types import NoneType
from typing import Any

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


@lru_cache(maxsize=4096)
def _odd_text(value: str) -> str:
    """Most texts of a run come again and again: contexts, questions, users."""
    text = io.StringIO()
    csv.writer(text).writerow([without_formula(value), ""])  # by its line end it quotes \r and \n
    return text.getvalue()[: -len(",\r\n")]


class _Cells(dict[type, Callable[[Any], str]]):
    """How each kind of value is written; a subclass as what it is one of, others as `str` does."""

    def __missing__(self, kind: type) -> Callable[[Any], str]:
        known = [self[base] for base in kind.__mro__ if base in self]
        self[kind] = known[0] if known else str
        return self[kind]


_CELLS = _Cells(
    {
        str: lambda value: value if value.isalnum() else _odd_text(value),
        float: lambda value: f"{value:.6f}".rstrip("0").rstrip("."),
        int: str,
        bool: lambda value: "true" if value else "false",
        NoneType: lambda value: "",
    }
)


class CsvLog:
    """Appends rows under a header; `flush` hands them to the operating system.

    The file ends with a whole row at any time. One that can be written no more keeps the rows it
    has: `error` says why, and what is appended from then on is dropped.
    """

    def __init__(self, path: Path, columns: Sequence[str]) -> None:
        """Raises OSError, also for a file that is there."""
        self.path = path
        self.error: OSError | None = None
        self._file = path.open("xb", buffering=0)
        self._waiting: list[str] = []
        self.append([columns])
        self.flush()
        if self.error is not None:
            self._file.close()
            raise self.error

    def append(self, rows: Iterable[Sequence[Any]]) -> None:
        """Add rows of values in the order of the columns."""
        self.append_text(to_csv(rows))

    def append_text(self, text: str) -> None:
        """Add rows that are CSV text already, as a worker sends them."""
        if self.error is None:
            self._waiting.append(text)

    def flush(self) -> None:
        """Make what was appended survive a crash of this process, and look whether the file is
        still where it was."""
        if self._file.closed or self.error is not None:
            return
        text, self._waiting = "".join(self._waiting), []
        try:
            self._write(text.encode("utf-8", "replace"))
            if not os.path.samestat(self.path.stat(), os.fstat(self._file.fileno())):
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        except OSError as error:
            self.error = error

    def close(self) -> None:
        """Flush and close; may be called again."""
        self.flush()
        self._file.close()

    def _write(self, rows: bytes) -> None:
        """All of them, or as many whole ones as there is room for; then OSError is raised."""
        begin, written = self._file.tell(), 0
        try:
            while written < len(rows):
                written += self._file.write(rows[written:])
        except OSError:
            end = begin + _whole_rows(rows[:written])
            self._file.truncate(end)
            self._file.seek(end)
            raise


def cut_torn_row(path: Path) -> None:
    """Take away what stands behind the last whole row. Raises OSError."""
    os.truncate(path, _whole_rows(path.read_bytes()))


def _whole_rows(text: bytes) -> int:
    """The length of the rows in it that are whole; a line end inside quotes ends none."""
    end = len(text)
    while (end := text.rfind(b"\n", 0, end) + 1) and text.count(b'"', 0, end) % 2:
        end -= 1
    return end
