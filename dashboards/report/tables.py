"""The tables of a page: rows of text cells, a column or a block of rows for each run."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dashboards.figures.style import NO_CONTEXT_COLOUR, colour_of
from dashboards.report.figures_of import METRICS, STATISTICS, RunFigures
from dashboards.report.run_files import ReportedRun
from dashboards.report.wording import NOTHING, megabytes, milliseconds, number, percent
from loadgen.compare.facts import ARGUMENTS, facts_of
from loadgen.runs.columns import Flags
from loadgen.runs.requests import Requests
from loadgen.stats.server_counters import LMCACHE, OFFLOAD
from loadgen.stats.sketch import least_values
from loadgen.stats.steady_state import LATENCIES, SteadyState, is_notable
from loadgen.stats.summary import TAILS, known_statistics

MOST_CONTEXTS = 40
MOST_ERRORS = 12
MOST_TEXT = 300


@dataclass(frozen=True, slots=True)
class TableRow:
    """`cells` beside the `head`; `colour` is a context's, `marked` says that it stands out."""

    head: str
    cells: tuple[str, ...]
    colour: str = ""
    marked: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """`columns` are the titles, that of the heads first. `numbers` says that cells are figures."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[TableRow, ...]
    numbers: bool = True
    note: str = ""


def metrics_table(runs: Mapping[str, RunFigures]) -> Table:
    """A row for each metric and run."""
    rows = []
    for metric in METRICS:
        for name, figures in runs.items():
            found = figures.metrics.get(metric, {})
            if any(each.of(metric, "count") for each in runs.values()):
                head = metric if len(runs) == 1 else f"{metric}, {name}"
                rows.append(TableRow(head, tuple(number(found.get(each)) for each in STATISTICS)))
    computed = [name for name, figures in runs.items() if figures.computed]
    note = f"{', '.join(computed)}: computed from requests.csv. " if computed else ""
    if any(NOTHING in row.cells and row.cells[0] != "0" for row in rows):
        note += TAILS
    return Table("Metrics", ("metric", *STATISTICS), tuple(rows), note=note.rstrip())


def engine_table(runs: Mapping[str, RunFigures]) -> Table:
    """A row for each figure of the engine, a column for each run."""
    rows = []
    for key, (title, form) in _ENGINE.items():
        values = [figures.server.get(key) for figures in runs.values()]
        of_tier = key in OFFLOAD or key in LMCACHE
        if any(values) or (not of_tier and any(value is not None for value in values)):
            rows.append(TableRow(title, tuple(form(value) for value in values)))
    return Table("Engine and cache", ("by its own counters", *runs), tuple(rows))


_ENGINE = {
    "computed_prompt_tokens": ("prompt tokens computed", number),
    "cached_prompt_tokens": ("prompt tokens from the prefix cache", number),
    "external_prompt_tokens": ("prompt tokens from a KV connector", number),
    "host_prompt_tokens": ("of these from memory", number),
    "disk_prompt_tokens": ("of these from disk", number),
    "other_prompt_tokens": ("of these from elsewhere", number),
    "offload_stored_bytes": ("bytes copied out of the cache", number),
    "offload_loaded_bytes": ("bytes copied back into it", number),
    "offload_load_mean_s": ("seconds of a copy back, mean", number),
    "tier_written_bytes": ("bytes written behind the memory", number),
    "tier_read_bytes": ("bytes read from there", number),
    "offload_wait_mean_s": ("seconds that requests waited for them, mean", number),
    "offload_failures": ("copies that found no room in memory", number),
    "tier_write_failures": ("failed writes behind the memory", number),
    "tier_read_failures": ("failed reads from there", number),
    "lmcache_lookup_hit_l1_tokens": ("tokens that LMCache found in its memory", number),
    "lmcache_lookup_hit_l2_tokens": ("tokens that it found behind that", number),
    "lmcache_l1_written_chunks": ("chunks written to its memory", number),
    "lmcache_l1_read_chunks": ("chunks read from it", number),
    "lmcache_l1_evicted_chunks": ("chunks thrown out of it", number),
    "kv_blocks_evicted": ("blocks evicted from the cache", number),
    "kv_block_idle_mean_s": ("seconds without a use before, mean", number),
    "kv_block_reuse_gap_mean_s": ("seconds between uses of a block, mean", number),
    "hit_rate": ("hit rate of the prefix cache", percent),
    "external_hit_rate": ("hit rate of the connector", percent),
    "generation_tokens": ("output tokens", number),
    "num_preemptions": ("preemptions", number),
    "peak_running": ("most requests running", number),
    "peak_waiting": ("most requests waiting", number),
    "peak_kv_cache_usage": ("highest KV usage", percent),
    "peak_engine_rss_mb": ("highest memory of the engine", megabytes),
    "peak_lmcache_rss_mb": ("highest memory of LMCache", megabytes),
    "peak_gpu_memory_mb": ("highest memory on GPUs", megabytes),
    "server_cpu_ms_per_token": ("CPU time of a token, computed or written", milliseconds),
}


def outcomes_table(runs: Mapping[str, RunFigures]) -> Table:
    """A row for each outcome, a column for each run."""
    names = list(dict.fromkeys(name for each in runs.values() for name in each.outcomes))
    rows = [TableRow(name, tuple(_share(name, each) for each in runs.values())) for name in names]
    return Table("Outcomes", ("outcome", *runs), tuple(rows))


def _share(outcome: str, figures: RunFigures) -> str:
    count = figures.outcomes.get(outcome, 0)
    return f"{count:,} ({percent(count / figures.requests)})" if figures.requests else f"{count:,}"


def gate_of(run: ReportedRun) -> Mapping[str, Any] | None:
    """`gate` of its summary; None without one, or where it is not as kvswarm writes it."""
    told = run.summary.get("gate")
    try:
        limits = [(each["limit"], each["found"], each["met"]) for each in told["limits"]]  # type: ignore[index]
        return told if limits and isinstance(told["verdict"], str) else None  # type: ignore[index]
    except (KeyError, TypeError):
        return None


def gate_table(run: ReportedRun) -> Table | None:
    """A row for each limit of `--gate`."""
    told = gate_of(run)
    if told is None:
        return None
    rows = [
        TableRow(str(each["limit"]), ("✓ met" if each["met"] else "✗ not met", str(each["found"])))
        for each in told["limits"]
    ]
    return Table(f"Gate of {run.name}", ("limit", "", "found"), tuple(rows), numbers=False)


def errors_table(run: ReportedRun) -> Table:
    """The most frequent texts, of requests that were cut off too."""
    found = frequent_errors(run, MOST_ERRORS + 1)
    rows = [TableRow(f"{count:,}", (text,)) for count, text in found[:MOST_ERRORS]]
    note = "Less frequent ones are left out." if len(found) > MOST_ERRORS else ""
    return Table(f"Errors of {run.name}", ("times", "error"), tuple(rows), numbers=False, note=note)


def frequent_errors(run: ReportedRun, most: int, failed: bool = False) -> list[tuple[int, str]]:
    """How often, and which text, the most frequent first; only of what failed where that is asked
    for."""
    errors, outcome = run.requests.text("error"), run.requests.text("outcome")
    codes = errors.codes
    if failed:
        fails = np.asarray([name not in ("ok", "cancelled") for name in outcome.names])
        codes = codes[fails[outcome.codes]]
    counts = np.bincount(codes, minlength=len(errors.names))
    order = [int(each) for each in np.argsort(-counts, kind="stable")]
    found = [(int(counts[each]), _cut(errors.names[each])) for each in order if counts[each]]
    return [(count, text) for count, text in found if text][:most]


def contexts_table(run: ReportedRun) -> Table:
    """The contexts with most requests; colours are those of the pictures."""
    drawn, requests, ok = run.drawn, run.requests, run.requests.ok
    counts = np.bincount(drawn.context, minlength=len(drawn.contexts))
    order = [int(each) for each in np.argsort(-counts, kind="stable") if counts[each]]
    rows = []
    for context in order[:MOST_CONTEXTS]:
        here = drawn.context == context
        name = drawn.contexts[context]
        colour = colour_of(context) if name else NO_CONTEXT_COLOUR
        cells = (
            f"{counts[context]:,}",
            f"{int((ok & here).sum()):,}",
            *_of_context(requests, here),
        )
        rows.append(TableRow(_cut(name) or "no context", cells, colour))
    rest = len(order) - MOST_CONTEXTS
    note = f"{rest:,} contexts with fewer requests are left out." if rest > 0 else ""
    columns = ("context", "requests", "ok", "prompt tokens p50", "cached", "TTFT p50", "TTFT p95")
    return Table(f"Contexts of {run.name}", columns, tuple(rows), note=note)


def _of_context(requests: Requests, which: Flags) -> Iterator[str]:
    ttft_ms = requests.latency("ttft_ms")[which]
    yield _quantile(requests.latency("prompt_tokens")[which], 0.5, "")
    yield percent(requests.figure("cached_share", which))
    yield _quantile(ttft_ms, 0.5, "ms")
    yield _quantile(ttft_ms, 0.95, "ms")


def _quantile(values: Any, quantile: float, unit: str) -> str:
    values = values[~np.isnan(values)]
    is_known = len(values) >= least_values(quantile)
    return number(float(np.quantile(values, quantile)), unit) if is_known else NOTHING


def configuration_table(runs: Sequence[ReportedRun]) -> Table:
    """How each run was made; rows in which runs differ stand out and come first."""
    told = {run.name: dict(_configuration(run)) for run in runs}
    rows = []
    for name in dict.fromkeys(name for facts in told.values() for name in facts):
        cells = tuple(_cut(facts.get(name, NOTHING)) for facts in told.values())
        if set(cells) - {"", "null"}:
            rows.append(TableRow(name, cells, marked=len(set(cells)) > 1))
    rows.sort(key=lambda row: not row.marked)
    note = "Rows in which the runs differ come first." if len(runs) > 1 else ""
    return Table("Configuration", ("", *told), tuple(rows), numbers=False, note=note)


def _configuration(run: ReportedRun) -> Iterator[tuple[str, str]]:
    try:
        facts = facts_of(run.description) or {}
    except (AttributeError, TypeError, ValueError):
        facts = {"run.json": "is not as kvswarm writes it"}
    for name, value in facts.items():
        yield name, value or ("set" if name.startswith(f"{ARGUMENTS}.") else "")
    for group in ("versions", "machine"):
        for name, value in (run.description.get(group) or {}).items():
            yield f"{group}.{name}", value if isinstance(value, str) else json.dumps(value)
    for name in ("users", "workers", "exit_code"):
        if name in run.description:
            yield name, str(run.description[name])


def command_lines(run: ReportedRun) -> list[tuple[str, str]]:
    """The command of the swarm and of each service, as they were typed."""
    argv = (run.description.get("target") or {}).get("argv")
    found = {"swarm": run.description.get("command_line")}
    found.update(argv if isinstance(argv, dict) else {})
    return [
        (str(name), " ".join(map(str, words)))
        for name, words in found.items()
        if isinstance(words, list)
    ]


def _cut(text: str) -> str:
    return text if len(text) <= MOST_TEXT else f"{text[: MOST_TEXT - 1]}…"


_OF_WARMUP = ("count", "mean", "p50", "p95", "p99")


def steady_table(runs: Sequence[ReportedRun], figures: Mapping[str, RunFigures]) -> Table | None:
    """With and without the warm-up that was found; None where none makes a difference."""
    rows: list[TableRow] = []
    for run in runs:
        steady = run.steady_state
        if steady is not None and is_notable(steady.to_json()):
            rows += _rows(run.name if len(runs) > 1 else "", steady, figures[run.name])
    note = (
        "Latencies of all requests, late ones too, and of ok requests that were due after the"
        " warm-up that was found."
    )
    return Table("Warm-up", ("", *_OF_WARMUP), tuple(rows), note=note) if rows else None


def _rows(name: str, steady: SteadyState, figures: RunFigures) -> Iterator[TableRow]:
    behind = f", {name}" if name else ""
    for metric in LATENCIES:
        both = {
            "all": figures.metrics.get(metric, {}),
            f"from {number(steady.from_s, 's')} on": known_statistics(steady.metrics[metric]),
        }
        if steady.metrics[metric]["count"]:
            for which, found in both.items():
                cells = tuple(number(found.get(each)) for each in _OF_WARMUP)
                yield TableRow(f"{metric}{behind}, {which}", cells)
