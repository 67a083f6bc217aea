"""What a run left, as far as it can be read."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dashboards.figures.requests import Requests
from dashboards.figures.server import ServerSeries
from dashboards.report import json_file
from dashboards.report.columns import Columns, Texts, read_columns
from dashboards.report.json_file import read_json_file
from loadgen.errors import UsageError
from loadgen.runs.directory import RUN_JSON
from loadgen.runs.json_file import read_json
from loadgen.runs.recorded import RecordedRun
from loadgen.stats.self_watch import COLUMNS as CLIENT_COLUMNS
from loadgen.stats.server_metrics import COLUMNS as SERVER_COLUMNS
from loadgen.stats.steady_state import COLUMNS as STEADY_COLUMNS
from loadgen.stats.steady_state import SteadyState, find_steady_state, is_meant_steady

REQUESTS, BATCHES, SUMMARY = "requests.csv", "batches.csv", "summary.json"
SERVER, CLIENT = "server_metrics.csv", "client_metrics.csv"
_NUMBERS = (
    "scheduled_s",
    "sent_s",
    "first_token_s",
    "end_s",
    "ttft_ms",
    "itl_mean_ms",
    "tpot_ms",
    "e2e_ms",
    "prompt_tokens",
    "cached_tokens",
    "output_tokens",
    "retrieval_ms",
)
_TEXTS = ("context_id", "rag_context_id", "outcome", "error", "slo_met", "label_correct")


@dataclass(frozen=True, slots=True)
class RunFiles:
    """One run; `description` and `summary` are `run.json` and `summary.json`, empty where missing;
    `table` has the rows that `requests` was made of, in its order. `unreachable_s` counts seconds
    in which the host refused or did not answer; `missing` says what is not there or broken.
    `warmup_s` was left out by `--warmup`; `steady` is None where the load was not meant to be."""

    path: Path
    name: str
    description: Mapping[str, Any]
    summary: Mapping[str, Any]
    table: Columns
    requests: Requests
    server: ServerSeries | None
    unreachable_s: int
    client: Columns | None
    missing: tuple[str, ...]
    warmup_s: float = 0.0
    steady: SteadyState | None = None


def is_run(path: Path) -> bool:
    """Whether the folder holds anything of a run that a report could be made of."""
    return any((path / name).is_file() for name in (RUN_JSON, REQUESTS, SUMMARY))


def find_runs(paths: Sequence[Path]) -> list[Path]:
    """The runs named, and those inside a named folder that is no run itself, in the order in which
    they were made. Raises UsageError."""
    found: list[Path] = []
    for path in paths:
        inside = [path] if is_run(path) else _inside(path)
        if not inside:
            reason = "no run in" if path.is_dir() else "no run at"
            raise UsageError(
                f"{reason} {path}: name the directory of a run, or one that holds some"
            )
        found += inside
    return list({path.resolve(): path for path in found}.values())


def _inside(path: Path) -> list[Path]:
    if not path.is_dir():
        return []
    inside = [each for each in path.iterdir() if each.is_dir() and is_run(each)]
    return sorted(inside, key=lambda each: (_start_s(each), each.name))


def _start_s(path: Path) -> float:
    start_s = read_json(path / RUN_JSON).get("start_unix_s")
    return float(start_s) if isinstance(start_s, int | float) else 0.0


def read_files(path: Path, name: str) -> RunFiles:
    """A run directory; whatever is missing or broken is told, not raised."""
    description = read_json_file(path / RUN_JSON, json_file.DESCRIPTION)
    summary = read_json_file(path / SUMMARY, json_file.SUMMARY)
    rows = read_columns(path / REQUESTS, _NUMBERS, _TEXTS)
    server, client = (
        read_columns(path / file, [name for name in columns if name not in texts], texts)
        for file, columns, texts in (
            (SERVER, SERVER_COLUMNS, ("reachable",)),
            (CLIENT, CLIENT_COLUMNS, ("process",)),
        )
    )
    warmup_s = RecordedRun(path).own_warmup_s
    table, requests = _requests(
        rows or Columns(0, {}, {}, ()), summary.content.get("stats_reset_s"), warmup_s
    )
    return RunFiles(
        path,
        name,
        description.content,
        summary.content,
        table,
        requests,
        _server(server),
        _unreachable_s(server),
        client if client is not None and client.rows else None,
        (*description.faults, *summary.faults, *_missing((rows, server, client))),
        warmup_s,
        _steady(path, description.content, table),
    )


def _steady(path: Path, description: Mapping[str, Any], table: Columns) -> SteadyState | None:
    if not is_meant_steady(description.get("options") or {}, (path / BATCHES).is_file()):
        return None
    outcome = table.text("outcome")
    ok = np.asarray([name == "ok" for name in outcome.names])[outcome.codes]
    return find_steady_state({name: table.number(name)[ok].tolist() for name in STEADY_COLUMNS})


def _missing(tables: Sequence[Columns | None]) -> Iterator[str]:
    for file, table in zip((REQUESTS, SERVER, CLIENT), tables, strict=True):
        if table is None:
            yield f"there is no {file}"
        elif not table.rows:
            yield f"{file} has no rows"
        if table is not None:
            yield from table.faults


def _requests(table: Columns, since_s: Any, warmup_s: float) -> tuple[Columns, Requests]:
    """In the order of sending, from the last reset of the statistics on and without the warm-up, as
    the summary counts."""
    outcome = table.text("outcome")
    cancelled = np.asarray([name == "cancelled" for name in outcome.names])[outcome.codes]
    sent_s, end_s = table.number("sent_s"), table.number("end_s")
    due_s = np.where(cancelled, np.nan, table.number("scheduled_s"))
    at_s = np.where(np.isnan(sent_s), due_s, sent_s)
    order = np.argsort(at_s, kind="stable")
    if since_s is not None:
        order = order[~(end_s[order] < since_s)]
    if warmup_s:
        order = order[~(table.number("scheduled_s")[order] < warmup_s)]
    table = Columns(
        len(order),
        {name: values[order] for name, values in table.numbers.items()},
        {name: Texts(text.codes[order], text.names) for name, text in table.texts.items()},
        table.faults,
    )
    return table, _made(table, at_s[order])


def _made(table: Columns, at_s: Any) -> Requests:
    context = _appearing(_sent_context(table))
    outcome = table.text("outcome")
    names = (
        "first_token_s",
        "end_s",
        "ttft_ms",
        "e2e_ms",
        "prompt_tokens",
        "cached_tokens",
        "output_tokens",
    )
    return Requests(
        at_s=at_s,
        **{name: table.number(name) for name in names},
        context=context.codes,
        contexts=context.names,
        outcome=outcome.codes,
        outcomes=outcome.names,
    )


def _sent_context(table: Columns) -> Texts:
    """That of the prompt: after a retrieval the one that was found."""
    true, found = table.text("context_id"), table.text("rag_context_id")
    retrieved = ~np.isnan(table.number("retrieval_ms"))
    if not retrieved.any():
        return true
    codes = np.where(retrieved, found.codes + len(true.names), true.codes)
    names = (*true.names, *found.names)
    first = {name: number for number, name in reversed(list(enumerate(names)))}
    same = np.asarray([first[name] for name in names], dtype=np.intp)
    return Texts(same[codes], names)


def _appearing(text: Texts) -> Texts:
    """Numbered in the order of appearance, those that do not appear left out."""
    codes, first, inverse = np.unique(text.codes, return_index=True, return_inverse=True)
    order = np.argsort(first, kind="stable")
    rank = np.empty(len(order), dtype=np.intp)
    rank[order] = np.arange(len(order))
    names = tuple(text.names[code] for code in codes[order])
    return Texts(rank[inverse] if len(names) else text.codes, names)


def _server(columns: Columns | None) -> ServerSeries | None:
    if columns is None or not columns.rows:
        return None
    at_s = columns.number("at_s")
    known = ~np.isnan(at_s)
    if not known.any():
        return None
    return ServerSeries(at_s[known], {name: each[known] for name, each in columns.numbers.items()})


def _unreachable_s(columns: Columns | None) -> int:
    if columns is None or "reachable" not in columns.texts:
        return 0
    reachable = columns.text("reachable")
    silent = np.asarray([name != "true" for name in reachable.names])
    return int(silent[reachable.codes].sum()) if columns.rows else 0
