"""What the gaps between a reply's tokens say of it: ITL and, where it stopped in mid-reply, TPOT.

A gap that was open when a late request was cut off counts with the time that it had lasted. A
stream that hangs after its tenth token would else have the ITL of its first ten.
"""

from collections.abc import Sequence
from functools import lru_cache

from loadgen.record import RequestRecord

SHARES = (0.50, 0.95, 0.99)
SPREAD = ("itl_mean_ms", "itl_p50_ms", "itl_p95_ms", "itl_p99_ms", "itl_max_ms")


def spread(gaps_ms: Sequence[float]) -> tuple[float | None, ...]:
    """The columns `SPREAD` of a reply with these gaps; None without any."""
    if not gaps_ms:
        return (None,) * len(SPREAD)
    ordered = sorted(gaps_ms)
    return sum(ordered) / len(ordered), *percentiles(ordered), ordered[-1]


def percentiles(ordered: list[float]) -> list[float]:
    """The 50th, 95th and 99th percentile of sorted values, at least one, interpolated between
    neighbours."""
    return [
        ordered[below] + (ordered[above] - ordered[below]) * part
        for below, above, part in _ranks(len(ordered))
    ]


@lru_cache(maxsize=4096)
def _ranks(count: int) -> tuple[tuple[int, int, float], ...]:
    """Between which of `count` values each percentile lies, and how far from the lower one."""
    positions = [share * (count - 1) for share in SHARES]
    return tuple((int(at), min(int(at) + 1, count - 1), at - int(at)) for at in positions)


def last_sign_s(record: RequestRecord, gaps_ms: Sequence[float]) -> float:
    """When the last token had come, or when the request was due where none had."""
    first_s = record.first_token_s
    return record.scheduled_s if first_s is None else first_s + sum(gaps_ms) / 1000


def count_open_gap(record: RequestRecord, gaps_ms: list[float]) -> None:
    """Add the gap that was open at the end of a record that is late to it and to its gaps.

    TPOT, where the host had counted the tokens until then, is what it had at least: the next one
    comes after the end.
    """
    if record.first_token_s is None:
        return
    open_ms = max((record.end_s - last_sign_s(record, gaps_ms)) * 1000, 0.0)
    gaps_ms.append(open_ms)
    for name, value in zip(SPREAD, spread(gaps_ms), strict=True):
        setattr(record, name, value)
    if record.output_tokens is not None:
        record.tpot_ms = sum(gaps_ms) / max(record.output_tokens, len(gaps_ms))
