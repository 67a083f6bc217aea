"""A CSV of a run as columns, read row by row and forgiving: a page shows what there is.

`loadgen.compare` refuses a file that is not whole, because it decides something; and it holds every
cell as text, which a report of a million requests could not.
"""

import csv
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from dashboards.figures.requests import Floats, Indices


@dataclass(frozen=True, slots=True)
class Texts:
    """A column of texts: `codes` holds positions in `names`, in the order of appearance."""

    codes: Indices
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Columns:
    """`faults` says what of the file could not be read. Columns the file has not are missing."""

    rows: int
    numbers: Mapping[str, Floats]
    texts: Mapping[str, Texts]
    faults: tuple[str, ...]

    def number(self, name: str) -> Floats:
        """A column of numbers, NaN where a cell is empty; all NaN without the column."""
        return self.numbers.get(name, np.full(self.rows, np.nan))

    def text(self, name: str) -> Texts:
        """A column of texts; all empty without the column."""
        empty = Texts(np.zeros(self.rows, dtype=np.intp), ("",))
        return self.texts.get(name, empty)


@dataclass(slots=True)
class _Filling:
    numbers: dict[str, "array[float]"]
    codes: dict[str, "array[int]"]
    names: dict[str, dict[str, int]]
    rows: int = 0
    odd_rows: int = 0
    odd_cells: int = 0
    faults: list[str] = field(default_factory=list)


def read_columns(path: Path, numbers: Sequence[str], texts: Sequence[str] = ()) -> Columns | None:
    """The named columns of the file; None where there is none. Rows that are not as wide as the
    header are left out, of which the last is one that a crash cut off."""
    try:
        with path.open(encoding="utf-8-sig", errors="replace", newline="") as file:
            return _read(path.name, csv.reader(file), numbers, texts)
    except OSError:
        return None


def _read(
    name: str, rows: Iterator[list[str]], numbers: Sequence[str], texts: Sequence[str]
) -> Columns:
    try:
        header = next(rows, [])
    except csv.Error as error:
        return Columns(0, {}, {}, (_broken_off(name, 0, error),))
    return _columns(name, _filled(name, rows, header, numbers, texts))


def _filled(
    name: str,
    rows: Iterator[list[str]],
    header: Sequence[str],
    numbers: Sequence[str],
    texts: Sequence[str],
) -> _Filling:
    place = {column: header.index(column) for column in (*numbers, *texts) if column in header}
    filling = _Filling(
        {column: array("d") for column in numbers if column in place},
        {column: array("q") for column in texts if column in place},
        {column: {} for column in texts},
    )
    try:
        for row in rows:
            _add(filling, row, place, len(header))
    except csv.Error as error:
        filling.faults.append(_broken_off(name, filling.rows, error))
    return filling


def _broken_off(name: str, rows: int, error: csv.Error) -> str:
    return f"{name} breaks off after {rows:,} rows ({error})"


def _add(filling: _Filling, row: list[str], place: Mapping[str, int], width: int) -> None:
    if len(row) != width:
        filling.odd_rows += 1
        return
    filling.rows += 1
    for column, values in filling.numbers.items():
        cell = row[place[column]]
        try:
            values.append(float(cell) if cell else np.nan)
        except ValueError:
            values.append(np.nan)
            filling.odd_cells += 1
    for column, codes in filling.codes.items():
        names = filling.names[column]
        codes.append(names.setdefault(row[place[column]], len(names)))


def _columns(name: str, filling: _Filling) -> Columns:
    faults = filling.faults
    if filling.odd_rows:
        faults.append(f"{name}: {filling.odd_rows:,} row(s) were not whole and are left out")
    if filling.odd_cells:
        faults.append(f"{name}: {filling.odd_cells:,} cell(s) hold no number and are left out")
    return Columns(
        filling.rows,
        {column: _finite(np.frombuffer(values)) for column, values in filling.numbers.items()},
        {
            column: Texts(
                np.frombuffer(codes, dtype=np.int64).astype(np.intp, copy=False),
                tuple(filling.names[column]) or ("",),
            )
            for column, codes in filling.codes.items()
        },
        tuple(faults),
    )


def _finite(values: Floats) -> Floats:
    return np.where(np.isfinite(values), values, np.nan)
