"""Our rows in Locust's own statistics: table, web UI, CSVs, merged over workers by Locust.

They go straight into `stats.entries`: firing `events.request` for them would count them as
requests in the aggregate. Locust's percentiles of a row come from a histogram whose keys it
rounds to whole milliseconds; ours keep three significant digits at any scale.
"""

import math
import time
from typing import Any

from locust.stats import RequestStats, StatsEntry

from loadgen.record import RequestRecord

KIND = "LLM"
TTFT = "TTFT (ms)"
ITL = "ITL (ms)"
TPOT = "TPOT (ms)"
TOKENS_PER_S = "Output tokens/s"
CACHED_SHARE = "Cached-token share (%)"


def three_digits(value: float) -> float:
    """Rounded to three significant digits: at most 0.5 % off."""
    if value <= 0:
        return 0.0
    return round(value, 2 - math.floor(math.log10(value)))


def log_record(stats: RequestStats, record: RequestRecord, gaps_ms: list[float]) -> None:
    """Add a finished request to the rows; only an `ok` one has latencies."""
    if record.outcome != "ok":
        return
    if record.ttft_ms is not None:
        _log(stats, TTFT, record.ttft_ms)
    for gap_ms in gaps_ms:
        _log(stats, ITL, gap_ms)
    if record.tpot_ms is not None:
        _log(stats, TPOT, record.tpot_ms)
    if record.cached_tokens is not None and record.prompt_tokens:
        _log(stats, CACHED_SHARE, 100.0 * record.cached_tokens / record.prompt_tokens)
    if record.output_tokens and record.e2e_ms:
        speed = record.output_tokens * 1000 / record.e2e_ms
        _log(stats, TOKENS_PER_S, speed, count=record.output_tokens)


def _log(stats: RequestStats, name: str, value: float, count: int = 1) -> None:
    """Log `count` observations of one value, as `StatsEntry.log` does one."""
    entry: StatsEntry = stats.entries[(name, KIND)]
    now = time.time()
    last = entry.last_request_timestamp
    if entry.use_response_times_cache and last and int(now) > int(last):
        entry._cache_response_times(int(now) - 1)
    entry.num_requests += count
    entry.num_reqs_per_sec[int(now)] += count
    entry.last_request_timestamp = now
    _log_value(entry, value, count)


def _log_value(entry: Any, value: float, count: int) -> None:
    entry.total_response_time += value * count
    entry.max_response_time = max(entry.max_response_time, value)
    least = entry.min_response_time
    entry.min_response_time = value if least is None else min(least, value)
    entry.response_times[three_digits(value)] += count
