"""How diverse a run's contexts really were, computed from what was sent."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from loadgen.workload.reuse import Recency


@dataclass(frozen=True, slots=True)
class Bucket:
    """Reuses whose distance is from `low` to `high`."""

    low: int
    high: int
    count: int


@dataclass(frozen=True, slots=True)
class ReuseDistance:
    """Distinct other contexts between two uses of one: an LRU cache that holds more than that
    many contexts still has it. Percentiles are nearest-rank, None where nothing was reused.
    """

    count: int
    first_uses: int
    mean: float | None
    p50: int | None
    p90: int | None
    p99: int | None
    max: int | None
    histogram: tuple[Bucket, ...]


@dataclass(frozen=True, slots=True)
class Diversity:
    """Contexts of the requests sent: how many, how evenly used, how soon used again.

    `entropy_bits` is Shannon's entropy of the contexts' shares, `effective_contexts` is two to
    its power: so many equally popular contexts would be as diverse.
    """

    requests: int
    distinct_contexts: int
    entropy_bits: float
    effective_contexts: float
    top_context_share: float
    reuse_distance: ReuseDistance


def measure_diversity(context_ids: Iterable[str]) -> Diversity:
    """The diversity of requests given by their contexts, in the order sent."""
    uses: Counter[str] = Counter()
    distances: Counter[int] = Counter()
    recency = Recency()
    for context_id in context_ids:
        uses[context_id] += 1
        distance = recency.use(context_id)
        if distance is not None:
            distances[distance] += 1
    requests = uses.total()
    entropy_bits = _entropy_bits(uses, requests)
    return Diversity(
        requests=requests,
        distinct_contexts=len(uses),
        entropy_bits=entropy_bits,
        effective_contexts=2**entropy_bits if requests else 0.0,
        top_context_share=max(uses.values()) / requests if requests else 0.0,
        reuse_distance=_summary(distances, first_uses=len(uses)),
    )


def _entropy_bits(uses: Mapping[str, int], requests: int) -> float:
    shares = (count / requests for count in uses.values())
    return math.fsum(share * -math.log2(share) for share in shares)


def _summary(distances: Mapping[int, int], first_uses: int) -> ReuseDistance:
    count = sum(distances.values())
    total = sum(distance * times for distance, times in distances.items())
    return ReuseDistance(
        count=count,
        first_uses=first_uses,
        mean=total / count if count else None,
        p50=_percentile(distances, count, 50),
        p90=_percentile(distances, count, 90),
        p99=_percentile(distances, count, 99),
        max=max(distances, default=None),
        histogram=_histogram(distances),
    )


def _percentile(distances: Mapping[int, int], count: int, percent: int) -> int | None:
    rank = -(-count * percent // 100)
    for distance in sorted(distances):
        rank -= distances[distance]
        if rank <= 0:
            return distance
    return None


def _histogram(distances: Mapping[int, int]) -> tuple[Bucket, ...]:
    """Buckets 0, 1, 2 to 3, 4 to 7 and so on, up to the last that is not empty."""
    counts: Counter[int] = Counter()
    for distance, times in distances.items():
        counts[distance.bit_length()] += times
    sizes = range(max(counts, default=-1) + 1)
    return tuple(Bucket((1 << bits) >> 1, (1 << bits) - 1, counts[bits]) for bits in sizes)
