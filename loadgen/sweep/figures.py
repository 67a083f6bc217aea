"""The figures of a cell, out of its `summary.json` and `run.json`."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from loadgen.runs.json_file import malformed
from loadgen.stats.metrics import figures, summarized

Source = Callable[[Mapping[str, Any]], Any]


def figures_of(
    description: Mapping[str, Any], summary: Mapping[str, Any], file: Path
) -> dict[str, float | None]:
    """Every one of `FIGURES`, None where the run has none. Raises UsageError, naming `file`, for
    what is no number."""
    content = {**summary, "run": description}
    return {name: _figure(source, content, file) for name, source in FIGURES.items()}


def _figure(source: Source, content: Mapping[str, Any], file: Path) -> float | None:
    try:
        value = source(content)
    except (KeyError, TypeError):
        return None
    if value is None:
        return None
    if not isinstance(value, int | float):
        raise malformed(file, f"{value!r} is no number")
    return float(value)


def _plain(name: str) -> Source:
    return lambda summary: summary[name]


def _metric(name: str, statistic: str) -> Source:
    return lambda summary: summary["metrics"][name][statistic]


def _total(name: str) -> Source:
    """Of `ok` requests: their mean is exact."""

    def total(summary: Mapping[str, Any]) -> float | None:
        metric = summary["metrics"][name]
        return round(metric["mean"] * metric["count"]) if metric["count"] else None

    return total


def _server(name: str) -> Source:
    return lambda summary: summary["server"][name]


def _target(name: str) -> Source:
    return lambda summary: summary["run"]["target"][name]


def _diversity(name: str) -> Source:
    return lambda summary: summary["diversity"][name]


FIGURES: Mapping[str, Source] = {
    "requests": _plain("requests"),
    "ok": lambda summary: summary["outcomes"]["ok"],
    "failed": _plain("failed"),
    "duration_s": _plain("duration_s"),
    **{each.name: _plain(each.name) for each in figures()},
    **{
        each.statistic(of_values): _metric(each.name, of_values)
        for each in summarized()
        if not each.neutral
        for of_values in ("mean", "p50", "p95", "p99")
    },
    "prompt_tokens": _total("prompt_tokens"),
    "output_tokens": _total("output_tokens"),
    **{
        name: _server(name)
        for name in (
            "computed_prompt_tokens",
            "cached_prompt_tokens",
            "external_prompt_tokens",
            "hit_rate",
            "external_hit_rate",
            "num_preemptions",
            "peak_running",
            "peak_waiting",
            "peak_kv_cache_usage",
            "peak_engine_rss_mb",
            "peak_lmcache_rss_mb",
            "peak_lmcache_l1_bytes",
        )
    },
    "settled": lambda summary: summary["steady_state"]["settled"],
    "usable_tokens": _target("usable_tokens"),
    "l1_gb": _target("l1_gb"),
    "distinct_contexts": _diversity("distinct_contexts"),
    "effective_contexts": _diversity("effective_contexts"),
    "client_saturated": _plain("client_saturated"),
}
"""Each figure with where it stands in `summary.json`, or in `run.json` below `run`."""
