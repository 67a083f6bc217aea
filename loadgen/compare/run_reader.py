"""Reads whatever a run left: its directory, or one exported CSV, told by its header."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from loadgen.compare import locust_csv
from loadgen.compare.csv_table import MOST, CsvTable
from loadgen.compare.facts import facts_of
from loadgen.compare.requests_csv import HEADER as REQUESTS_HEADER
from loadgen.compare.requests_csv import TimedRequests, series_of
from loadgen.compare.run import Run
from loadgen.compare.series import Series, Values
from loadgen.compare.soundness import faults_of
from loadgen.compare.stream import read_stream
from loadgen.compare.warmup import own_warmup_s, steady_remarks, steady_state_of
from loadgen.errors import UsageError
from loadgen.runs.directory import RUN_JSON
from loadgen.runs.json_file import malformed, read_object
from loadgen.stats.steady_state import SteadyState

SUMMARY_JSON = "summary.json"


def read_run(
    path: Path, row_name: str = locust_csv.ALL_REQUESTS, warmup_s: float | None = None
) -> Run:
    """A run directory or a CSV file, of Locust's the row of that name. The first `warmup_s` seconds
    are left out, by default those of the run's own `--warmup`. Raises UsageError."""
    if path.is_dir():
        return _read_directory(path, own_warmup_s(path) if warmup_s is None else warmup_s)
    if not path.exists():
        raise UsageError(f"no run at {path}: name a run directory or an exported CSV file")
    table = CsvTable.read(path)
    for header, read in _DIALECTS:
        if table.has(header):
            return read(table.whole(), row_name, warmup_s or 0.0)
    raise UsageError(
        f"{path} is none of the files compare reads: name a run directory, a requests.csv, or"
        " Locust's _stats.csv or _stats_history.csv"
        f" (its header is {','.join(table.header)[:80]!r})"
    )


def _read_directory(path: Path, warmup_s: float) -> Run:
    file = path / "requests.csv"
    if not file.is_file():
        raise UsageError(f"{path} has no requests.csv: name a run directory or a CSV file")
    table = _table(file, REQUESTS_HEADER)
    description, summary = read_object(path / RUN_JSON), read_object(path / SUMMARY_JSON)
    since_s, batches = _since_s(path / SUMMARY_JSON, summary), path / "batches.csv"
    faults = tuple(faults_of(description, summary))
    sent = TimedRequests.of(table, since_s, warmup_s)
    found = steady_state_of(sent, description.get("options"), batches.exists())
    return Run(
        name=str(path),
        series={**series_of(sent), **_batches(batches, since_s, warmup_s)},
        facts=_facts(path / RUN_JSON, description, batched=batches.exists()),
        stream=read_stream(table),
        users=str((description.get("options") or {}).get("num_users") or ""),
        machine=str(description.get("machine", "")),
        faults=faults,
        remarks=(
            *map(str, faults),
            *_remarks(description),
            *steady_remarks(found, warmup_s),
        ),
        found_warmup_s=_end_of_warmup_s(found),
    )


def _table(file: Path, header: Sequence[str]) -> CsvTable:
    table = CsvTable.read(file)
    if not table.has(header):
        raise UsageError(f"{file} has not the columns of a {file.name}")
    return table.whole()


def _since_s(file: Path, summary: Mapping[str, Any]) -> float:
    since_s = summary.get("stats_reset_s")
    if since_s is None:
        return -math.inf
    if not isinstance(since_s, int | float) or not abs(since_s) <= MOST:
        raise malformed(file, "stats_reset_s is no number of seconds")
    return float(since_s)


def _facts(file: Path, description: Mapping[str, Any], batched: bool) -> dict[str, str] | None:
    try:
        return facts_of(description, batched)
    except (AttributeError, TypeError, ValueError) as error:
        raise malformed(file, str(error)) from None


def _batches(file: Path, since_s: float, warmup_s: float) -> dict[str, Series]:
    if not file.is_file():
        return {}
    table = _table(file, ("sent_s", "last_reply_s", "makespan_s"))
    sent_s, replied_s = (
        table.numbers(column, least=-math.inf) for column in ("sent_s", "last_reply_s")
    )
    makespan_s = table.numbers("makespan_s")
    kept = ~np.isnan(makespan_s) & (np.nan_to_num(replied_s) >= since_s)
    if warmup_s:
        kept &= table.numbers("scheduled_s", least=-math.inf) >= warmup_s
    return {"makespan_s": Values(makespan_s[kept][np.argsort(sent_s[kept], kind="stable")])}


def _remarks(description: Mapping[str, Any]) -> Iterator[str]:
    if description.get("cache_state") == "unknown":
        yield "what the caches held at the start is not known"


def _requests(table: CsvTable, row_name: str, warmup_s: float) -> Run:
    sent = TimedRequests.of(table, warmup_s=warmup_s)
    batched = table.has(("batch_id",)) and any(table.text("batch_id"))
    found = steady_state_of(sent, {}, batched)
    return Run(
        str(table.path),
        series_of(sent),
        stream=read_stream(table),
        remarks=tuple(steady_remarks(found, warmup_s)),
        found_warmup_s=_end_of_warmup_s(found),
    )


def _end_of_warmup_s(found: SteadyState | None) -> float:
    return found.from_s if found is not None and found.early else 0.0


def _history(table: CsvTable, row_name: str, warmup_s: float) -> Run:
    _require_whole(table, warmup_s)
    return Run(
        str(table.path),
        locust_csv.read_history(table, row_name),
        locust_csv.read_last_totals(table, row_name),
        users=locust_csv.read_users(table),
    )


def _stats(table: CsvTable, row_name: str, warmup_s: float) -> Run:
    _require_whole(table, warmup_s)
    totals = locust_csv.read_stats(table, row_name)
    is_whole = row_name == locust_csv.ALL_REQUESTS
    rows = locust_csv.read_rows(table) if is_whole else frozenset[str]()
    return Run(str(table.path), totals=totals, rows=rows)


def _require_whole(table: CsvTable, warmup_s: float) -> None:
    if warmup_s:
        raise UsageError(
            f"{table.path} does not say when requests were due, so no warm-up can be left out:"
            " name run directories or requests.csv, or compare with --warmup 0"
        )


def _no_times(table: CsvTable, row_name: str, warmup_s: float) -> Run:
    raise UsageError(
        f"{table.path} is Locust's table of failures or exceptions, which has no times: name its"
        " _stats.csv or _stats_history.csv, or the web UI's request statistics"
    )


_DIALECTS: tuple[tuple[tuple[str, ...], Callable[[CsvTable, str, float], Run]], ...] = (
    (REQUESTS_HEADER, _requests),
    (locust_csv.HISTORY_HEADER, _history),
    (locust_csv.STATS_HEADER, _stats),
    (locust_csv.FAILURES_HEADER, _no_times),
    (locust_csv.EXCEPTIONS_HEADER, _no_times),
)
