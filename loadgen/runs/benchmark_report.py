"""A run as llm-d's benchmark report, version 0.2.1, which tools read that compare across loaders.

What that format has no field for goes with it whole: `run.json` and `summary.json` stand in the
load's `native.config`.
"""

import hashlib
import math
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np

from loadgen.errors import UsageError
from loadgen.runs.columns import Columns
from loadgen.runs.directory import RUN_JSON
from loadgen.runs.json_file import malformed
from loadgen.runs.recorded import RecordedRun

VERSION = "0.2.1"
TOOL, ENGINE = "kvswarm", "engine"
KEYWORD = "made by kvswarm report"
STATISTICS = ("stddev", "min", "p50", "p90", "p95", "p99", "max")
LATENCIES = {
    "time_to_first_token": ("ttft_ms", "ms"),
    "time_per_output_token": ("tpot_ms", "ms/token"),
    "inter_token_latency": ("itl_ms", "ms/token"),
    "request_latency": ("e2e_ms", "ms"),
}
LENGTHS = {"input_length": "prompt_tokens", "output_length": "output_tokens"}
GAUGES = {"running_requests": "running", "waiting_requests": "waiting"}
Content = dict[str, Any]


def benchmark_report(path: Path) -> Content:
    """The report of a finished run. Raises UsageError for anything else."""
    run = RecordedRun(path, is_strict=True)
    if not run.description or not {"metrics", "requests"} <= run.summary.keys():
        raise UsageError(f"{path} is no finished run: name a directory with run.json, summary.json")
    return {
        "version": VERSION,
        "run": _run(run),
        "scenario": {"stack": [_engine(run)], "load": _load(run)},
        "results": {
            "request_performance": {"aggregate": _performance(run.summary)},
            "observability": {"components": [_observed(run)]},
        },
    }


def _run(run: RecordedRun) -> Content:
    start_s, duration_s = run.description.get("start_unix_s"), run.summary.get("duration_s")
    told: Content = {
        "uid": _digest(start_s, run.description.get("command_line"), run.path.resolve()),
        "keywords": [KEYWORD, *_doubts(run)],
        "description": " ".join(map(str, run.description.get("command_line") or ())),
    }
    if start_s is not None and duration_s is not None:
        try:
            start = datetime.fromtimestamp(start_s, UTC)
            end = start + timedelta(seconds=duration_s)
        except (ValueError, OverflowError, OSError):
            raise malformed(run.path / RUN_JSON, f"start_unix_s is {start_s}") from None
        iso = {"start": start.isoformat(), "end": end.isoformat()}
        told["time"] = {**iso, "duration": f"PT{duration_s:.3f}S"}
    return told


def _doubts(run: RecordedRun) -> Iterator[str]:
    """What keeps its figures from being a server's."""
    if run.is_simulated:
        yield "simulated"
    if run.summary.get("client_saturated"):
        yield "the client was saturated"
    if code := run.description.get("exit_code"):
        yield f"exit code {code}"


def _digest(*parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]


def _engine(run: RecordedRun) -> Content:
    facts = run.description.get("host_facts") or {}
    standardized = {
        "kind": "generic",
        "tool": "vllm" if facts.get("is_vllm") else "openai-compatible",
        "tool_version": str(facts.get("version") or "unknown"),
        "model": {"name": str(run.description.get("model"))},
    }
    return {
        "metadata": {"label": ENGINE, "cfg_id": _digest(run.engine_argv, standardized)},
        "standardized": standardized,
        "native": {"config": dict(run.target) or None},
    }


def _load(run: RecordedRun) -> Content:
    options, prompts = run.options, run.summary["metrics"].get("prompt_tokens") or {}
    standardized: Content = {
        "tool": TOOL,
        "tool_version": str((run.description.get("versions") or {}).get(TOOL) or "unknown"),
        "parallelism": max(int(run.description.get("workers") or 1), 1),
        "source": "sampled",
        "input_seq_len": {"distribution": "other", "value": prompts.get("mean") or 0},
    }
    if options.get("arrivals") == "closed" and run.description.get("users"):
        standardized["concurrency"] = run.description["users"]
    elif _rate(options) is not None:
        standardized["rate_qps"] = _rate(options)
    whole = {"run": dict(run.description), "summary": dict(run.summary)}
    words = [str(word) for word in run.description.get("command_line") or ()]
    return {
        "metadata": {"cfg_id": _digest(sorted(options.items(), key=str))},
        "standardized": standardized,
        "native": {"args": {"argv": words}, "config": whole},
    }


def _rate(options: Mapping[str, Any]) -> float | None:
    """Of an open loop with one rate; phases have none."""
    try:
        rate = float(options.get("rate") or "")
    except ValueError:
        return None
    return rate if 0 < rate < math.inf else None


def _performance(summary: Mapping[str, Any]) -> Content:
    metrics, outcomes = summary["metrics"], summary.get("outcomes") or {}
    requests = {
        "total": summary["requests"],
        "failures": summary.get("failed"),
        "incomplete": outcomes.get("cancelled", 0),
        **{name: _statistics(metrics.get(each), "count") for name, each in LENGTHS.items()},
    }
    latency = {n: _statistics(metrics.get(each), unit) for n, (each, unit) in LATENCIES.items()}
    rates = {"request_rate": ("requests_per_s", "queries/s")}
    rates |= {f"{n}_token_rate": (f"{n}_tokens_per_s", "tokens/s") for n in ("output", "total")}
    throughput = {
        name: {"units": unit, "mean": summary[each]}
        for name, (each, unit) in rates.items()
        if summary.get(each) is not None
    }
    return {"requests": _known(requests), "latency": _known(latency), "throughput": throughput}


def _statistics(found: Mapping[str, Any] | None, unit: str) -> Content | None:
    """Of a metric of the summary; None where nothing was counted."""
    if not isinstance(found, Mapping) or not found.get("count") or "mean" not in found:
        return None
    return {"units": unit, "mean": found["mean"], **_known({n: found.get(n) for n in STATISTICS})}


def _known(values: Mapping[str, Any]) -> Content:
    return {name: value for name, value in values.items() if value is not None}


def _observed(run: RecordedRun) -> Content:
    """By the engine's own counters, and its gauges of each second."""
    server, seconds = run.summary.get("server") or {}, RecordedRun(run.path).server
    aggregate: Content = {"kv_cache_usage": _gauge(seconds, "kv_cache_usage", "fraction")}
    aggregate |= {name: _gauge(seconds, column, "count") for name, column in GAUGES.items()}
    if server.get("hit_rate") is not None:
        aggregate["cache_hit_rate"] = {"units": "fraction", "mean": server["hit_rate"]}
    if server.get("num_preemptions") is not None:
        aggregate["preemptions"] = {"units": "count", "mean": server["num_preemptions"]}
    return {"component_label": ENGINE, "aggregate": _known(aggregate)}


def _gauge(seconds: Columns, column: str, unit: str) -> Content | None:
    values = seconds.number(column)
    values = values[~np.isnan(values)]
    if not len(values):
        return None
    ends = {"min": float(values.min()), "max": float(values.max())}
    return {"units": unit, "mean": float(values.mean()), **ends}
