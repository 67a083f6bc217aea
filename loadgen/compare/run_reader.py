"""Reads whatever a run left: its directory, or one exported CSV, told by its header."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from loadgen.compare import locust_csv
from loadgen.compare.facts import facts_of
from loadgen.compare.locust_csv import LocustTable
from loadgen.compare.run import ComparedRun, Fault, faults_of, prompts_of, stream_of
from loadgen.compare.series import RequestMarks, Series, Values, series_of
from loadgen.errors import UsageError
from loadgen.runs.columns import read_header
from loadgen.runs.directory import RUN_JSON
from loadgen.runs.json_file import malformed, value_at
from loadgen.runs.recorded import REQUESTS_CSV, SUMMARY_JSON, RecordedRun
from loadgen.runs.requests import NEEDED, Requests, read_requests
from loadgen.stats.steady_state import SteadyState, enough_s, is_notable


def read_run(
    path: Path, row_name: str = locust_csv.ALL_REQUESTS, warmup_s: float | None = None
) -> ComparedRun:
    """A run directory or a CSV file, of Locust's the row of that name. The first `warmup_s` seconds
    are left out, by default those of the run's own `--warmup`. Raises UsageError."""
    if path.is_dir():
        return _read_directory(path, warmup_s)
    if not path.exists():
        raise UsageError(f"no run at {path}: name a run directory or an exported CSV file")
    if set(NEEDED) <= set(read_header(path)):
        return _requests(path, warmup_s or 0.0)
    return _of_locust(LocustTable.read(path), row_name, warmup_s or 0.0)


def common_warmup_s(paths: Sequence[Path]) -> float:
    """The longest that one of the runs left out by its `--warmup`: it is left out of each of them,
    so that all tell the same."""
    return max((RecordedRun(path).own_warmup_s for path in paths), default=0.0)


def _read_directory(path: Path, warmup_s: float | None) -> ComparedRun:
    if not (path / REQUESTS_CSV).is_file():
        raise UsageError(f"{path} has no requests.csv: name a run directory or a CSV file")
    run = RecordedRun(path, is_strict=True, given_warmup_s=warmup_s)
    requests = run.requests.sent
    faults = (*faults_of(run.description, run.summary), *_losses(run))
    numbers, makespans_s = run.batch_numbers, run.makespans_s
    marks = RequestMarks(numbers, np.arange(len(numbers)))
    makespans: dict[str, Series] = {"makespan_s": Values(makespans_s, marks)}
    found = run.steady_state
    return ComparedRun(
        name=str(path),
        series=series_of(requests) | (makespans if run.is_batched else {}),
        facts=_facts(path / RUN_JSON, run.description, run.is_batched),
        stream=stream_of(requests),
        prompts=prompts_of(requests),
        users=str(run.options.get("num_users") or ""),
        machine=str(run.description.get("machine", "")),
        versions=_versions(run.description),
        faults=faults,
        remarks=(
            *map(str, faults),
            *_remarks(run, run.missing),
            *_steady_remarks(found, run.warmup_s),
        ),
        found_warmup_s=_end_of_warmup_s(found),
    )


def _facts(file: Path, description: Mapping[str, Any], batched: bool) -> dict[str, str] | None:
    try:
        return facts_of(description, batched)
    except (AttributeError, TypeError, ValueError) as error:
        raise malformed(file, str(error)) from None


def _versions(description: Mapping[str, Any]) -> dict[str, str]:
    """Of the packages, and what a host says of its own; empty where the run does not tell."""
    host = {"the host": value_at(description, "host_facts.version")}
    told = {**(description.get("versions") or {}), **host}
    return {str(name): str(each) for name, each in told.items() if each}


def _losses(run: RecordedRun) -> Iterator[Fault]:
    if run.missing:
        yield Fault("rows are missing", run.missing)


def _remarks(run: RecordedRun, told: str = "") -> Iterator[str]:
    """All but what was `told`."""
    if run.is_simulated:
        yield "it is simulated: no server answered"
    if run.reset_s is not None:
        yield f"its statistics were reset at {run.reset_s:.4g} s: what was before is not counted"
    if run.description.get("cache_state") == "unknown":
        yield "what the caches held at the start is not known"
    if late := int(run.requests.is_late.sum()):
        yield (
            f"{late} requests were cut off late and count with what they had waited: its latencies"
            " are lower bounds"
        )
    for problem in run.problems:
        if problem.is_of_rows and problem.remark != told:
            yield problem.remark


def _steady_remarks(found: SteadyState | None, warmup_s: float) -> Iterator[str]:
    """What there is to say of a run without its first `warmup_s` seconds."""
    if warmup_s:
        yield f"the first {warmup_s:.4g} s are left out as its warm-up"
    if found is None:
        return
    if found.settled is False:
        yield "it never settled: time to first token drifted, so its figures are of no steady state"
    elif is_notable(found.to_json()):
        yield (
            f"{found.early} requests of its first {found.from_s:.1f} s are a warm-up that moves the"
            f" mean TTFT by {found.shift:+.0%} (--warmup {enough_s(found.from_s)} leaves them out)"
        )


def _requests(path: Path, warmup_s: float) -> ComparedRun:
    requests = Requests.of(read_requests(path).sound(), None, warmup_s)
    batched = any(requests.text("batch_id").names)
    found = requests.steady_state({}, batched)
    sent = requests.sent
    faults, odd = _of_rows(path, requests, warmup_s)
    return ComparedRun(
        str(path),
        series_of(sent),
        stream=stream_of(sent),
        faults=faults,
        remarks=(*map(str, faults), *odd, *_steady_remarks(found, warmup_s)),
        found_warmup_s=_end_of_warmup_s(found),
    )


def _of_rows(
    path: Path, requests: Requests, warmup_s: float
) -> tuple[tuple[Fault, ...], tuple[str, ...]]:
    """What is missing of a file by the summary beside it, and what else is odd about its rows."""
    odd = tuple(each.remark for each in requests.columns.problems if each.is_of_rows)
    if path.name != REQUESTS_CSV or not (path.parent / SUMMARY_JSON).is_file():
        return (), odd
    run = RecordedRun(path.parent, given_warmup_s=warmup_s)
    ended = faults_of(run.description, run.summary) if run.description else ()
    return (*ended, *_losses(run)), odd


def _end_of_warmup_s(found: SteadyState | None) -> float:
    return found.from_s if found is not None and found.early else 0.0


def _history(table: LocustTable, row_name: str) -> ComparedRun:
    return ComparedRun(
        str(table.path),
        locust_csv.read_history(table, row_name),
        locust_csv.read_last_totals(table, row_name),
        users=locust_csv.read_users(table),
    )


def _stats(table: LocustTable, row_name: str) -> ComparedRun:
    totals = locust_csv.read_stats(table, row_name)
    is_whole = row_name == locust_csv.ALL_REQUESTS
    rows = locust_csv.read_rows(table) if is_whole else frozenset[str]()
    return ComparedRun(str(table.path), totals=totals, rows=rows)


def _of_locust(table: LocustTable, row_name: str, warmup_s: float) -> ComparedRun:
    is_history = table.has(locust_csv.HISTORY_HEADER)
    if is_history or table.has(locust_csv.STATS_HEADER):
        whole = table.whole()
        if warmup_s:
            raise UsageError(
                f"{table.path} does not say when requests were due, so no warm-up can be left out:"
                " name run directories or requests.csv, or compare with --warmup 0"
            )
        return _history(whole, row_name) if is_history else _stats(whole, row_name)
    if table.has(locust_csv.FAILURES_HEADER) or table.has(locust_csv.EXCEPTIONS_HEADER):
        raise UsageError(
            f"{table.path} is Locust's table of failures or exceptions, which has no times: name"
            " its _stats.csv or _stats_history.csv, or the web UI's request statistics"
        )
    raise UsageError(
        f"{table.path} is none of the files compare reads: name a run directory, a requests.csv, or"
        " Locust's _stats.csv or _stats_history.csv"
        f" (its header is {','.join(table.header)[:80]!r})"
    )
