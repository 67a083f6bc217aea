"""How diverse a run's contexts really were, computed from what was sent."""

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from itertools import accumulate

SPARE_SLOTS = 64


class Recency:
    """LRU stack distances of a sequence of keys, O(log distinct keys) each.

    A key's last use has a slot in time. A Fenwick tree counts the occupied slots, so that those
    after a key's own are the other keys used since. When time has run out of slots, they are dealt
    anew in the same order. (Bennett and Kruskal 1975, with a tree as large as the distinct keys.)
    """

    def __init__(self) -> None:
        self._slots: dict[Hashable, int] = {}  # ordered by last use
        self._next = 1
        self._tree: list[int] = []
        self._deal()

    def use(self, key: Hashable) -> int | None:
        """Distinct other keys since the last use of this one; None at its first use."""
        slot = self._slots.pop(key, None)
        if slot is not None and slot == self._next - 1:
            self._slots[key] = slot
            return 0
        distance = None
        if slot is not None:
            distance = len(self._slots) + 1 - self._occupied_until(slot)
            self._occupy(slot, -1)
        if self._next == len(self._tree):
            self._deal()
        self._occupy(self._next, 1)
        self._slots[key] = self._next
        self._next += 1
        return distance

    def _occupied_until(self, slot: int) -> int:
        total = 0
        while slot:
            total += self._tree[slot]
            slot &= slot - 1
        return total

    def _occupy(self, slot: int, change: int) -> None:
        while slot < len(self._tree):
            self._tree[slot] += change
            slot += slot & -slot

    def _deal(self) -> None:
        """Give the keys the slots 1, 2, ... and room for as many uses again."""
        self._slots = {key: slot for slot, key in enumerate(self._slots, start=1)}
        used = len(self._slots)
        size = 2 * used + SPARE_SLOTS + 1
        # Node i counts the slots above i - (i & -i) up to i; the first `used` ones are occupied.
        self._tree = [max(0, min(i, used) - (i & (i - 1))) if i else 0 for i in range(size)]
        self._next = used + 1


@dataclass(frozen=True, slots=True)
class Bucket:
    """Reuses whose distance is from `low` to `high`."""

    low: int
    high: int
    count: int


@dataclass(frozen=True, slots=True)
class ReuseDistance:
    """Distinct other contexts between two uses of one: an LRU cache that holds more than that
    many contexts still has it. Percentiles are between neighbours, None where nothing was reused.
    """

    count: int
    first_uses: int
    mean: float | None
    p50: float | None
    p90: float | None
    p99: float | None
    max: int | None
    histogram: tuple[Bucket, ...]


@dataclass(frozen=True, slots=True)
class Diversity:
    """Contexts of the requests sent: how many, how evenly used, how soon used again.

    `entropy_bits` is Shannon's entropy of the contexts' shares, `effective_contexts` is two to
    its power: so many equally popular contexts would be as diverse.
    """

    requests: int
    """Requests that were sent with a context."""
    distinct_contexts: int
    """How many contexts they had."""
    entropy_bits: float
    """Shannon entropy of the contexts' shares."""
    effective_contexts: float
    """Two to that power: as many equally popular ones would be as diverse."""
    top_context_share: float
    """Share of the most popular context."""
    reuse_distance: ReuseDistance
    """Distinct other contexts between two uses of one, in the order of sending: `count`,
    `first_uses`, `mean`, `p50`, `p90`, `p99`, `max`, and a `histogram` (JSON only). An LRU cache of
    more than d contexts still has one at distance d."""


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


def _percentile(distances: Mapping[int, int], count: int, percent: int) -> float | None:
    """As `numpy.percentile` has it of all `count` of them."""
    if not count:
        return None
    ordered = sorted(distances)
    ends = list(accumulate(distances[each] for each in ordered))
    rank, part = divmod(percent * (count - 1), 100)
    low, high = (ordered[bisect_right(ends, min(at, count - 1))] for at in (rank, rank + 1))
    return low + (high - low) * part / 100


def _histogram(distances: Mapping[int, int]) -> tuple[Bucket, ...]:
    """Buckets 0, 1, 2 to 3, 4 to 7 and so on, up to the last that is not empty."""
    counts: Counter[int] = Counter()
    for distance, times in distances.items():
        counts[distance.bit_length()] += times
    sizes = range(max(counts, default=-1) + 1)
    return tuple(Bucket((1 << bits) >> 1, (1 << bits) - 1, counts[bits]) for bits in sizes)
