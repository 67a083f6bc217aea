"""Our rows in Locust's own statistics: table, web UI, CSVs, merged over workers by Locust.

They go straight into `stats.entries`: firing `events.request` for them would count them as
requests in the aggregate. Locust's percentiles of a row come from a histogram whose keys it
rounds to whole milliseconds; ours keep three significant digits at any scale, and the very many
gaps between tokens, for which rounding costs too much, are counted in a sketch's buckets.
"""

import time
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import chain
from operator import mul
from typing import Any
from weakref import WeakKeyDictionary

import locust.stats
from locust.stats import RequestStats

from loadgen.record import BatchRecord, RequestRecord
from loadgen.stats.metrics import CATALOG, Metric, summarized
from loadgen.stats.sketch import bucket_counts, bucket_middle

KIND = "LLM"
ITL = CATALOG["itl_ms"].row
TOKENS_PER_S = CATALOG["output_tokens_per_s"].row
CACHED_SHARE = CATALOG["cached_share"].row

MANY = 256
"""So many gaps at once are told by the middles of a sketch's buckets, at most 0.6 % off."""
KEPT_S = 60
"""Locust keeps what it counts in each second for ever, and reads the last 12 of them."""


def three_digits(value: float) -> float:
    """Rounded to three significant digits: at most 0.5 % off."""
    return float(f"{value:.3g}") if value > 0 else 0.0


def log_records(stats: RequestStats, rows: Iterable[tuple[RequestRecord, list[float]]]) -> None:
    """Add finished requests to the rows, a batch at once; latencies are those that count."""
    rows = list(rows)
    timed = [row for row in rows if row[0].outcome == "ok" or row[0].late]
    records = [record for record, _ in timed if record.outcome == "ok"]
    for metric in _rows_of("request"):
        values = (record.latency_ms(metric.column) for record, _ in timed)
        _log(stats, metric.row, [value for value in values if value is not None])
    _log(stats, ITL, list(chain.from_iterable(gaps_ms for _, gaps_ms in timed)))
    _log(stats, CACHED_SHARE, list(_cached_shares(stats, records)))
    speeds = list(_speeds(records))
    _log(stats, TOKENS_PER_S, [speed for speed, _ in speeds], [tokens for _, tokens in speeds])


def log_requests(stats: RequestStats, method: str, name: str, times_ms: list[float]) -> None:
    """Requests that succeeded in Locust's own rows, all at once, as its listener logs each."""
    if not times_ms:
        return
    keys = Counter(map(locust.stats.bucket_response_time, times_ms)).items()
    for entry in (stats.total, stats.entries[(name, method)]):
        _log_many(entry, times_ms, None, keys)


def log_batches(stats: RequestStats, batches: Iterable[BatchRecord]) -> None:
    """Add finished batches; only a whole one has a makespan."""
    batches = list(batches)
    for metric in _rows_of("batch"):
        values = (getattr(batch, metric.column) for batch in batches)
        _log(stats, metric.row, [value for value in values if value is not None])


def _rows_of(source: str) -> list[Metric]:
    return [each for each in summarized() if each.row and each.source == source]


def forget_seconds(stats: RequestStats) -> None:
    """Drop the counts of single seconds that nobody reads any more."""
    oldest = int(time.time()) - KEPT_S
    for entry in (stats.total, *stats.entries.values()):
        for counts in (entry.num_reqs_per_sec, entry.num_fail_per_sec):
            for second in [second for second in counts if second < oldest]:
                del counts[second]


def _cached_shares(stats: RequestStats, records: list[RequestRecord]) -> Iterator[float]:
    """Of each reply, in percent; none until the host told of cached tokens. From then on a reply
    without them took none from a cache, as did those before, which are made up for."""
    known = [each for each in records if each.prompt_tokens]
    row = stats.entries.get((CACHED_SHARE, KIND))
    if not row or not row.num_requests:
        since_s, before = _untold.pop(stats, (0.0, 0))
        before = before if since_s == stats.total.start_time else 0
        if all(each.cached_tokens is None for each in known):
            _untold[stats] = stats.total.start_time, before + len(known)
            return
        yield from [0.0] * before
    for record in known:
        yield 100.0 * (record.cached_tokens or 0) / (record.prompt_tokens or 1)


_untold: WeakKeyDictionary[RequestStats, tuple[float, int]] = WeakKeyDictionary()
"""When these statistics began, and how many replies since did not tell of cached tokens."""


def _speeds(records: list[RequestRecord]) -> Iterator[tuple[float, int]]:
    """Output tokens per second of each reply, and how many tokens had that speed."""
    for record in records:
        if record.output_tokens and record.e2e_ms:
            yield record.output_tokens * 1000 / record.e2e_ms, record.output_tokens


def _log(
    stats: RequestStats, name: str, values: list[float], counts: list[int] | None = None
) -> None:
    """Log observations of now, the n-th value `counts[n]` times, as `StatsEntry.log` does one."""
    if values:
        _log_many(stats.entries[(name, KIND)], values, counts, _keys(name, values, counts))


def _log_many(
    entry: Any, values: list[float], counts: list[int] | None, keys: Iterable[tuple[float, int]]
) -> None:
    now = time.time()
    last = entry.last_request_timestamp
    if entry.use_response_times_cache and last and int(now) > int(last):
        entry._cache_response_times(int(now) - 1)
    total = len(values) if counts is None else sum(counts)
    entry.num_requests += total
    entry.num_reqs_per_sec[int(now)] += total
    entry.last_request_timestamp = now
    least, most, lowest = min(values), max(values), entry.min_response_time
    entry.max_response_time = max(entry.max_response_time, most)
    entry.min_response_time = least if lowest is None else min(lowest, least)
    entry.total_response_time += sum(values if counts is None else map(mul, values, counts))
    for key, count in keys:
        entry.response_times[key] += count


def _keys(name: str, values: list[float], counts: list[int] | None) -> Iterable[tuple[float, int]]:
    if counts is not None:
        return zip(map(three_digits, values), counts, strict=True)
    if name == ITL and len(values) >= MANY:
        return _in_buckets(values)
    return Counter(map(three_digits, values)).items()


def _in_buckets(values: list[float]) -> Iterator[tuple[float, int]]:
    above = [value for value in values if value > 0]
    if len(above) < len(values):
        yield 0.0, len(values) - len(above)
    for index, count in bucket_counts(above).items():
        yield _middle(index), count


@lru_cache(maxsize=4096)
def _middle(index: int) -> float:
    return float(f"{bucket_middle(index):.4g}")
