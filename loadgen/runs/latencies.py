"""The latencies of a run's `ok` requests, read back from its `requests.csv`."""

import csv
import math
from array import array
from collections.abc import Iterator, Mapping
from pathlib import Path

from loadgen.stats.steady_state import COLUMNS, MOST_REQUESTS


def read_latencies(
    requests_csv: Path,
    since_s: float | None = None,
    warmup_s: float = 0.0,
    most: int = MOST_REQUESTS,
) -> tuple[Mapping[str, "array[float]"], int]:
    """`COLUMNS`, NaN where a cell is empty, of those that count: they ended after `since_s` and
    were due after the warm-up. Of more than `most`, every second of those kept is left out, as
    often as is needed (`each_of`): each given stands for as many as the number says."""
    columns = {name: array("d") for name in COLUMNS}
    each = 1
    for number, cells in enumerate(_counted(requests_csv, since_s, warmup_s)):
        if number % each:
            continue
        for name, cell in zip(COLUMNS, cells, strict=True):
            columns[name].append(float(cell or "nan"))
        if len(columns[COLUMNS[0]]) > most:
            columns = {name: values[::2] for name, values in columns.items()}
            each *= 2
    return columns, each


def _counted(requests_csv: Path, since_s: float | None, warmup_s: float) -> Iterator[list[str]]:
    """The cells of `COLUMNS`, in the order of the file."""
    least_s = -math.inf if since_s is None else since_s
    with requests_csv.open(encoding="utf-8", newline="") as file:
        rows = csv.reader(file)
        header = next(rows)
        outcome, due, end = map(header.index, ("outcome", "scheduled_s", "end_s"))
        places = [header.index(name) for name in COLUMNS]
        for row in rows:
            if len(row) < len(header):
                continue  # a full disk cut it off
            if row[outcome] != "ok" or float(row[end]) < least_s:
                continue
            if not warmup_s or float(row[due]) >= warmup_s:
                yield [row[place] for place in places]
