"""Reads whatever a run left: its directory, or one exported CSV, told by its header."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from loadgen.compare import locust_csv
from loadgen.compare.csv_table import CsvTable
from loadgen.compare.facts import facts_of
from loadgen.compare.requests_csv import HEADER as REQUESTS_HEADER
from loadgen.compare.requests_csv import read_requests
from loadgen.compare.run import Run
from loadgen.compare.series import Series, Values
from loadgen.errors import UsageError
from loadgen.runs.directory import RUN_JSON, read_json

SUMMARY_JSON = "summary.json"


def read_run(path: Path, row_name: str = locust_csv.ALL_REQUESTS) -> Run:
    """A run directory or a CSV file, of Locust's the row of that name. Raises UsageError."""
    if path.is_dir():
        return _read_directory(path)
    if not path.exists():
        raise UsageError(f"no run at {path}: name a run directory or an exported CSV file")
    table = CsvTable.read(path)
    for header, read in _DIALECTS:
        if table.has(header):
            return read(table, row_name)
    raise UsageError(
        f"{path} is neither our requests.csv nor Locust's statistics or their history, by its"
        f" header: {','.join(table.header)[:80]!r}"
    )


def _read_directory(path: Path) -> Run:
    file = path / "requests.csv"
    if not file.is_file():
        raise UsageError(f"{path} has no requests.csv: name a run directory or a CSV file")
    table = CsvTable.read(file)
    if not table.has(REQUESTS_HEADER):
        raise UsageError(f"{file} has not the columns of a requests.csv")
    description, summary = read_json(path / RUN_JSON), read_json(path / SUMMARY_JSON)
    since_s = summary.get("stats_reset_s")
    since = -np.inf if since_s is None else float(since_s)
    return Run(
        name=str(path),
        series={**read_requests(table, since), **_batches(path / "batches.csv", since)},
        facts=facts_of(description, batched=(path / "batches.csv").exists()),
        machine=str(description.get("machine", "")),
        remarks=tuple(_remarks(description, summary)),
    )


def _batches(file: Path, since_s: float) -> dict[str, Series]:
    if not file.is_file():
        return {}
    table = CsvTable.read(file)
    if not table.has(("sent_s", "last_reply_s", "makespan_s")):
        raise UsageError(f"{file} has not the columns of a batches.csv")
    makespan_s, sent_s = table.numbers("makespan_s"), table.numbers("sent_s")
    kept = ~np.isnan(makespan_s) & (np.nan_to_num(table.numbers("last_reply_s")) >= since_s)
    return {"makespan_s": Values(makespan_s[kept][np.argsort(sent_s[kept], kind="stable")])}


def _remarks(description: Mapping[str, Any], summary: Mapping[str, Any]) -> Iterator[str]:
    if summary.get("client_saturated"):
        reason = summary.get("client_saturated_reason") or "see its client_metrics.csv"
        yield f"the client was saturated, so its times are not the server's ({reason})"
    if summary.get("lost_workers"):
        yield f"{summary['lost_workers']} worker(s) were lost"
    if description.get("host_died"):
        yield "the host died"
    elif description and "exit_code" not in description:
        yield "it did not come to its end"
    if description.get("cache_state") == "unknown":
        yield "what the caches held at the start is not known"


def _requests(table: CsvTable, row_name: str) -> Run:
    return Run(str(table.path), read_requests(table))


def _history(table: CsvTable, row_name: str) -> Run:
    series = locust_csv.read_history(table, row_name)
    return Run(str(table.path), series, locust_csv.read_last_totals(table, row_name))


def _stats(table: CsvTable, row_name: str) -> Run:
    return Run(str(table.path), totals=locust_csv.read_stats(table, row_name))


def _no_times(table: CsvTable, row_name: str) -> Run:
    raise UsageError(
        f"{table.path} is Locust's table of failures or exceptions, which has no times: name its"
        " _stats.csv or _stats_history.csv, or the web UI's request statistics"
    )


_DIALECTS: tuple[tuple[tuple[str, ...], Callable[[CsvTable, str], Run]], ...] = (
    (REQUESTS_HEADER, _requests),
    (locust_csv.HISTORY_HEADER, _history),
    (locust_csv.STATS_HEADER, _stats),
    (locust_csv.FAILURES_HEADER, _no_times),
    (locust_csv.EXCEPTIONS_HEADER, _no_times),
)
