"""Locust's own files: `_stats.csv`, `_stats_history.csv` and the downloads of its web UI.

The first has totals only. The second has them second by second; differences of its totals give
exact counts and exact means for each second, but percentiles only of the whole.
"""

import csv
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from loadgen.compare.series import Ratio, Series
from loadgen.errors import UsageError
from loadgen.runs.columns import MOST, Floats, Indices
from loadgen.stats.metrics import CATALOG, summarized

STATS_HEADER = ("Type", "Name", "Request Count", "Failure Count", "Average Response Time")
HISTORY_HEADER = (
    "Timestamp",
    "Type",
    "Name",
    "Total Request Count",
    "Total Failure Count",
    "Total Average Response Time",
)
FAILURES_HEADER = ("Method", "Name", "Error", "Occurrences")
EXCEPTIONS_HEADER = ("Count", "Message", "Traceback", "Nodes")
ALL_REQUESTS = "Aggregated"
OUR_ROWS = {each.row: each.name for each in summarized() if each.row}
OUR_KIND = "LLM"
TOKENS_ROW = CATALOG["output_tokens_per_s"].row


@dataclass(frozen=True, slots=True)
class LocustTable:
    """A header and the rows below it."""

    path: Path
    header: tuple[str, ...]
    rows: Sequence[Sequence[str]]

    @classmethod
    def read(cls, path: Path) -> "LocustTable":
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

    def whole(self) -> "LocustTable":
        """Without a last row that was not written to its end. Raises UsageError for any other row
        that is not as wide as the header."""
        width, rows = len(self.header), self.rows
        if rows and len(rows[-1]) < width:
            rows = rows[:-1]
        for number, row in enumerate(rows, 2):
            if len(row) != width:
                raise UsageError(f"{self.path}, row {number}: {len(row)} cells, header {width}")
        return LocustTable(self.path, self.header, rows)

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
            value = _as_number(cell)
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

    def where(self, keep: Callable[[Sequence[str]], bool]) -> "LocustTable":
        """Only the rows to keep."""
        return LocustTable(self.path, self.header, [row for row in self.rows if keep(row)])


def _as_number(cell: str) -> float | None:
    """NaN for an empty cell or `N/A`, None for what is no number."""
    try:
        return float(cell) if cell and cell != "N/A" else math.nan
    except ValueError:
        return None


def read_stats(table: LocustTable, row_name: str) -> dict[str, tuple[float, int]]:
    """Figures and their samples: those of `row_name`, and of the rows that kvswarm adds."""
    row = _only(table, row_name)
    requests, failures = (_count(row, column) for column in ("Request Count", "Failure Count"))
    _require_fewer_failures(row, "Request Count", "Failure Count")
    totals = dict(_response_times(row, "response_ms"))
    per_s = _number(row, "Requests/s") - _number(row, "Failures/s")
    totals["requests_per_s"] = (per_s, requests - failures)
    if requests:
        totals["errors"] = (failures / requests, requests)
    for name in set(table.text("Name")) & {*OUR_ROWS, TOKENS_ROW}:
        totals.update(_our_row(_only(table, name), name))
    return totals


def _our_row(row: LocustTable, name: str) -> Iterator[tuple[str, tuple[float, int]]]:
    if name == TOKENS_ROW:
        count = _count(row, "Request Count")
        yield "output_tokens_per_s", (_number(row, "Requests/s"), count)
    else:
        yield from _response_times(row, OUR_ROWS[name])


def _response_times(row: LocustTable, metric: str) -> Iterator[tuple[str, tuple[float, int]]]:
    count = _count(row, "Request Count")
    if not count:
        return
    yield f"{metric}.mean", (_number(row, "Average Response Time"), count)
    yield from _percentiles(row, metric, count)


def _percentiles(
    row: LocustTable, metric: str, count: int
) -> Iterator[tuple[str, tuple[float, int]]]:
    for column in row.header:
        if column.endswith("%") and column != "100%":
            yield f"{metric}.p{column[:-1]}", (_number(row, column), count)


def _only(table: LocustTable, name: str) -> LocustTable:
    found = _named(table, name)
    if len(found.rows) != 1:
        raise UsageError(f"{table.path} has {len(found.rows)} rows named {name!r}: it must be one")
    return found


def _count(row: LocustTable, column: str) -> int:
    return int(row.known(column)[0])


def _require_fewer_failures(rows: LocustTable, requests: str, failures: str) -> None:
    if (rows.known(failures) > rows.known(requests)).any():
        raise UsageError(
            f"{rows.path}: {failures} is above {requests}: name a file as Locust wrote it"
        )


def _number(row: LocustTable, column: str) -> float:
    return float(row.numbers(column)[0]) if column in row.header else float("nan")


def read_history(table: LocustTable, row_name: str) -> dict[str, Series]:
    """Rates, means and errors of `row_name`, a sample per second with requests or between them."""
    rows = _named(table, row_name)
    _require_fewer_failures(rows, "Total Request Count", "Total Failure Count")
    at_s, total = rows.known("Timestamp"), rows.known("Total Request Count")
    failed = rows.known("Total Failure Count")
    time_ms = total * np.nan_to_num(rows.numbers("Total Average Response Time"))
    kept = _while_loaded(at_s, total)
    seconds, requests, failures, spent_ms = (
        np.diff(each[kept]) for each in (at_s, total, failed, time_ms)
    )
    samples = len(seconds)
    if not samples:
        raise UsageError(
            f"{table.path} has no two rows of {row_name!r} with requests between them: name the"
            " history of a longer run, or its _stats.csv"
        )
    return {
        "requests_per_s": Ratio(requests - failures, seconds, samples),
        "response_ms": Ratio(spent_ms, requests, samples),
        "errors": Ratio(failures, requests, samples, counts=True),
    }


def read_users(table: LocustTable) -> str:
    """Most users at once; empty where the file does not tell."""
    if "User Count" not in table.header:
        return ""
    return str(int(table.known("User Count").max()))


def read_rows(table: LocustTable) -> frozenset[str]:
    """What was requested, as `GET /name`: all rows but the sum and those that kvswarm adds."""
    kind, index = (table.header.index(column) for column in ("Type", "Name"))
    return frozenset(
        f"{row[kind]} {row[index]}"
        for row in table.rows
        if row[index] != ALL_REQUESTS and row[kind] != OUR_KIND
    )


def read_last_totals(table: LocustTable, row_name: str) -> dict[str, tuple[float, int]]:
    """Percentiles of the whole run, from its last row. Where Locust was told to write a row for
    each name, they are those of the last seconds: then none."""
    if len(set(table.text("Name"))) > 1:
        return {}
    rows = _named(table, row_name)
    last = LocustTable(table.path, table.header, rows.rows[-1:])
    count = _count(last, "Total Request Count")
    return dict(_percentiles(last, "response_ms", count)) if count else {}


def _named(table: LocustTable, name: str) -> LocustTable:
    """The rows of that name, or of that type and name: `GET /v1/models`. Raises UsageError."""
    if not table.rows:
        raise UsageError(f"{table.path} has a header and no rows: name a file of a finished run")
    kind, index = (table.header.index(column) for column in ("Type", "Name"))
    found = table.where(lambda row: row[index] == name)
    if not found.rows:
        found = table.where(lambda row: f"{row[kind]} {row[index]}" == name)
    if not found.rows:
        names = sorted(set(table.text("Name")))
        raise UsageError(f"{table.path} has no row named {name!r}: --row is one of {names}")
    kinds = sorted(set(found.text("Type")))
    if len(kinds) > 1:
        named = [f"{each} {name}" for each in kinds]
        raise UsageError(f"{table.path} has several rows named {name!r}: --row is one of {named}")
    return found


def _while_loaded(at_s: Floats, total: Floats) -> Indices:
    """Rows from the last reset, or the last moment without a request, to the last new request; of
    rows in the same second the last."""
    last_of_second = np.append(np.diff(at_s) > 0, True)
    rows = np.flatnonzero(last_of_second)
    falls = np.flatnonzero(np.diff(total[rows]) < 0)
    rows = rows[falls[-1] + 1 :] if len(falls) else rows
    grows = np.flatnonzero(np.diff(total[rows]) > 0)
    return rows[grows[0] : grows[-1] + 2] if len(grows) else rows[:0]
