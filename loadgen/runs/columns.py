"""A CSV file of a run as typed columns, with what of it could not be read.

Read row by row into arrays, so that a file of millions of rows takes a few bytes a cell.
"""

import csv
import math
from array import array
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import islice
from operator import itemgetter
from pathlib import Path
from typing import Any, Self, get_args

import numpy as np
from numpy.typing import NDArray

from loadgen.runs.csv_log import with_formula
from loadgen.runs.json_file import FileProblem, malformed, refuse

Floats = NDArray[np.float64]
Indices = NDArray[np.intp]
Flags = NDArray[np.bool_]
Codes = NDArray[np.int32]
Rows = Indices | Flags | slice
ALL = slice(None)

MOST = 1e30
"""No figure of a run is larger, and squares of sums of such are still finite."""
Numbered = Sequence[tuple[int, list[str]]]
_Adder = tuple[int, Callable[[str, Sequence[str], Numbered], None], str]
CHUNK = 1024
"""Rows that are turned into columns at once."""
ID = "request_id"
"""Most often a number, and then read as one; another's may be any text."""
DURATIONS = frozenset(("makespan_s",))
"""Columns in seconds that are no moments: those may lie before the start of a run."""


@dataclass(frozen=True, slots=True)
class Texts:
    """A column of texts: `codes` holds positions in `names`, in the order of appearance."""

    codes: Indices
    names: tuple[str, ...]

    def among(self, *names: str) -> Flags:
        """Which rows hold one of them."""
        return np.asarray([name in names for name in self.names], dtype=np.bool_)[self.codes]

    def as_list(self) -> list[str]:
        """The text of each row."""
        return [self.names[code] for code in self.codes.tolist()]


@dataclass(frozen=True, slots=True)
class Columns:
    """`header` is that of the file. A column that it has not reads as unknown in every row."""

    rows: int
    header: tuple[str, ...] = ()
    numbers: Mapping[str, Floats] = field(default_factory=dict)
    codes: Mapping[str, Codes] = field(default_factory=dict)
    names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    problems: tuple[FileProblem, ...] = ()

    def number(self, name: str, rows: Rows = ALL) -> Floats:
        """A column of numbers, NaN where a cell is empty."""
        found = self.numbers.get(name)
        return np.full(self.rows, np.nan)[rows] if found is None else found[rows]

    def text(self, name: str, rows: Rows = ALL) -> Texts:
        """A column of texts, empty where a cell is."""
        found = self.codes.get(name)
        if found is None:
            return Texts(np.zeros(self.rows, dtype=np.intp)[rows], ("",))
        return Texts(found[rows].astype(np.intp), self.names[name])

    def flag(self, name: str, rows: Rows = ALL) -> Floats:
        """A column of true and false as 1 and 0, NaN where a cell is empty."""
        text = self.text(name, rows)
        values = [{"true": 1.0, "false": 0.0}.get(name, np.nan) for name in text.names]
        return np.asarray(values, dtype=np.float64)[text.codes]

    def has(self, names: Collection[str]) -> bool:
        """Whether the file has all of these columns."""
        return set(names) <= set(self.header)

    def sound(self) -> Self:
        """Itself. Raises UsageError where it cannot be relied on."""
        refuse(self.problems)
        return self


def kinds_of(record: Any) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The names of the columns of numbers and of those of text, by the fields of a dataclass."""
    numbers = {
        each.name: {float, int} & {each.type, *get_args(each.type)} != set()
        for each in fields(record)
    }
    return (
        tuple(name for name, is_number in numbers.items() if is_number),
        tuple(name for name, is_number in numbers.items() if not is_number),
    )


def read_columns(
    path: Path, numbers: Sequence[str], texts: Sequence[str] = (), needed: Sequence[str] = ()
) -> Columns:
    """The named columns of the file, as far as it has them. What is wrong is told in `problems`:
    rows that are not as wide as the header are left out, of which the last is one that a crash cut
    off; so are cells that hold no number. Without the columns `needed` it is another file."""
    try:
        with path.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
            return _Reading(path, numbers, texts).read(csv.reader(file), needed)
    except FileNotFoundError:
        remark, refusal = f"there is no {path.name}", f"there is no {path}: name another"
    except OSError as error:
        reason = error.strerror or str(error)
        remark = f"{path.name} cannot be read ({reason})"
        refusal = f"{path} cannot be read as CSV ({reason})"
    return Columns(0, problems=(FileProblem(remark, refusal),))


def read_header(path: Path) -> tuple[str, ...]:
    """The names of a file's columns, none where it has no such line."""
    try:
        with path.open(encoding="utf-8-sig", errors="replace", newline="") as file:
            return tuple(next(csv.reader(file), ()))
    except (OSError, csv.Error):
        return ()


class _Reading:
    """Columns while they fill."""

    def __init__(self, path: Path, numbers: Sequence[str], texts: Sequence[str]) -> None:
        self._path = path
        self._numbers = {name: array("d") for name in numbers}
        self._codes = {name: array("i") for name in texts}
        self._names: dict[str, dict[str, int]] = {name: {} for name in texts}
        self._problems: list[FileProblem] = []
        self._rows = 0
        self._seen = 1
        """Rows of the file so far, the header among them."""
        self._odd_rows: list[tuple[int, int]] = []
        """Number and width of those that are not as wide as the header; the first ones."""
        self._odd_cells: list[str] = []
        """What is to be said of cells that hold no number; the first ones."""
        self._odd_cell_count = 0

    def read(self, reader: Iterator[list[str]], needed: Sequence[str]) -> Columns:
        """All of the file."""
        rows = self._unbroken(reader)
        header = next(rows, None)
        if header is None:
            text = f"{self._path} is empty: name a file with a header and rows"
            problems = self._problems or [FileProblem(f"{self._path.name} has no rows", text)]
            return Columns(0, problems=tuple(problems))
        adders = [(header.index(n), self._add_numbers, n) for n in self._numbers if n in header]
        adders += [(header.index(n), self._add_texts, n) for n in self._codes if n in header]
        self._take(rows, len(header), adders)
        if missing := [name for name in needed if name not in header]:
            remark = f"{self._path.name} has no column {', '.join(missing)}"
            what = f"it has not the columns of a {self._path.name}"
            self._problems.append(FileProblem(remark, str(malformed(self._path, what))))
        return self._finished(tuple(header))

    def _take(self, rows: Iterator[list[str]], width: int, adders: Sequence[_Adder]) -> None:
        places = itemgetter(*(place for place, _, _ in adders), 0, 0)
        for numbered in self._whole_rows(rows, width):
            cells = zip(*(places(row) for _, row in numbered), strict=True)
            for (_, add, name), column in zip(adders, cells, strict=False):
                add(name, column, numbered)
            self._rows += len(numbered)

    def _unbroken(self, reader: Iterator[list[str]]) -> Iterator[list[str]]:
        try:
            yield from reader
        except csv.Error as error:
            remark = f"{self._path.name} breaks off after {self._rows:,} rows ({error})"
            self._problems.append(
                FileProblem(remark, f"{self._path} cannot be read as CSV ({error})")
            )

    def _whole_rows(self, rows: Iterator[list[str]], width: int) -> Iterator[Numbered]:
        """Those as wide as the header, each with its number in the file."""
        while chunk := list(islice(rows, CHUNK)):
            numbered = list(enumerate(chunk, self._seen + 1))
            self._seen += len(chunk)
            self._odd_rows += [(n, len(row)) for n, row in numbered if len(row) != width]
            if whole := [each for each in numbered if len(each[1]) == width]:
                yield whole

    def _add_texts(self, name: str, cells: Sequence[str], numbered: Numbered) -> None:
        names = self._names[name]
        self._codes[name].extend([names.setdefault(cell, len(names)) for cell in cells])

    def _add_numbers(self, name: str, cells: Sequence[str], numbered: Numbered) -> None:
        least = -MOST if name.endswith("_s") and name not in DURATIONS else 0.0
        values, odd = _numbers(cells)
        known = np.frombuffer(values)
        for at in (*odd, *np.flatnonzero((np.abs(known) > MOST) | (known < least)).tolist()):
            if name != ID:
                self._odd_cell(name, cells[at], numbered[at][0], least)
            values[at] = math.nan
        self._numbers[name].extend(values)

    def _odd_cell(self, name: str, cell: str, number: int, least: float) -> None:
        self._odd_cell_count += 1
        self._odd_cells = self._odd_cells or [
            f"{self._path}, row {number}: {name} is {cell[:40]!r}, which is no number from"
            f" {least:g} to {MOST:g}: correct it or leave the file out"
        ]

    def _finished(self, header: tuple[str, ...]) -> Columns:
        self._tell_of_rows(len(header))
        if self._odd_cells:
            remark = f"{self._odd_cell_count:,} cell(s) hold no number and are left out"
            self._problems.append(FileProblem(f"{self._path.name}: {remark}", self._odd_cells[0]))
        if not self._rows:
            self._problems.append(FileProblem(f"{self._path.name} has no rows"))
        return Columns(
            self._rows,
            header,
            {n: np.frombuffer(v) for n, v in self._numbers.items() if n in header},
            {n: np.frombuffer(v, dtype=np.int32) for n, v in self._codes.items() if n in header},
            {name: self._shown(name) for name in self._codes if name in header},
            tuple(self._problems),
        )

    def _tell_of_rows(self, width: int) -> None:
        if not self._odd_rows:
            return
        remark = f"{len(self._odd_rows):,} row(s) were not whole and are left out"
        number, cells = self._odd_rows[0]
        is_cut_off = number == self._seen and cells < width
        refusal = "" if is_cut_off else f"{self._path}, row {number}: {cells} cells, header {width}"
        self._problems.append(FileProblem(f"{self._path.name}: {remark}", refusal))

    def _shown(self, name: str) -> tuple[str, ...]:
        names = [with_formula(each) for each in self._names[name]] or [""]
        if any(map(_is_no_utf8, names)):
            self._problems.append(FileProblem("", f"{self._path} cannot be read as CSV (no UTF-8)"))
            names = [each.encode("utf-8", "replace").decode() for each in names]
        return tuple(names)


def _is_no_utf8(text: str) -> bool:
    return not text.isascii() and any("\udc80" <= each <= "\udcff" for each in text)


def _numbers(cells: Sequence[str]) -> tuple["array[float]", list[int]]:
    """NaN for empty cells, and where there are cells that hold no number."""
    try:
        return array("d", [float(cell) if cell else math.nan for cell in cells]), []
    except ValueError:
        values = array("d", map(_number, cells))
    return values, [at for at, cell in enumerate(cells) if cell and math.isnan(values[at])]


def _number(cell: str) -> float:
    try:
        return float(cell) if cell else math.nan
    except ValueError:
        return math.nan
