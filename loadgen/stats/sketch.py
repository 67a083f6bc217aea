"""A mergeable sketch of one quantity: exact moments, quantiles within 0.5 % at any scale."""

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Self

GAMMA = 1.01  # a bucket's upper bound over its lower one
_INDEX_PER_LOG = 1 / math.log(GAMMA)
_MIDDLE = 2 / (GAMMA + 1)  # times the upper bound: at most (GAMMA-1)/(GAMMA+1) from either end
_FOLD_AT = 512


def bucket_counts(values: Sequence[float]) -> Counter[int]:
    """How many of the values, all above 0, lie in which bucket."""
    log = math.log
    return Counter(map(math.ceil, [log(value) * _INDEX_PER_LOG for value in values]))


def bucket_middle(index: int) -> float:
    """A value that is at most 0.5 % from any in the bucket."""
    return float(GAMMA**index * _MIDDLE)


def least_values(q: float) -> int:
    """From how many values on one lies beyond the `q`-quantile, for 0 < q < 1: 20 for p95, 100 for
    p99. A median is one of any."""
    return 1 if q == 0.5 else math.ceil(round(1 / min(q, 1 - q), 6))


class Sketch:
    """Counts values >= 0 in logarithmic buckets (DDSketch, Masson et al., VLDB 2019).

    Count, sum, mean, standard deviation, minimum and maximum are exact; a quantile is at most
    0.5 % off. Not thread-safe.
    """

    __slots__ = ("_buckets", "_count", "_m2", "_max", "_min", "_pending", "_sum", "_zeros")

    def __init__(self) -> None:
        self._clear()

    def _clear(self) -> None:
        self._buckets: Counter[int] = Counter()
        self._pending: list[float] = []
        self._count = self._zeros = 0
        self._sum = self._m2 = 0.0
        self._min, self._max = math.inf, 0.0

    def add(self, value: float, count: int = 1) -> None:
        """Count `value`, `count` times; ValueError when it is negative or not finite."""
        if not 0 <= value < math.inf:
            raise ValueError(f"a sketch holds finite values >= 0, not {value}")
        if count == 1:
            self._pending.append(value)
            if len(self._pending) >= _FOLD_AT:
                self._fold()
        elif count > 1:
            self._absorb(count, value * count, 0.0, value, value)
            if value:
                self._buckets[math.ceil(math.log(value) * _INDEX_PER_LOG)] += count
            else:
                self._zeros += count

    def add_many(self, values: Sequence[float]) -> None:
        """Count all `values`, or none of them and a ValueError when one cannot be held."""
        if not values:
            return
        # A NaN or an infinity among them makes the sum one too.
        if not (min(values) >= 0 and sum(values) < math.inf):
            odd = next((value for value in values if not 0 <= value < math.inf), math.inf)
            raise ValueError(f"a sketch holds finite values >= 0, not {odd}")
        self._pending.extend(values)
        if len(self._pending) >= _FOLD_AT:
            self._fold()

    def merge(self, other: "Sketch") -> None:
        """Add all that `other` holds, which stays as it is."""
        other._fold()
        self._absorb(other._count, other._sum, other._m2, other._min, other._max)
        self._zeros += other._zeros
        self._buckets.update(other._buckets)

    def _fold(self) -> None:
        """Move what was added since the last fold into the moments and the buckets."""
        values = self._pending
        if not values:
            return
        self._pending = []
        total = math.fsum(values)
        mean = total / len(values)
        m2 = sum([(value - mean) * (value - mean) for value in values])
        lowest = min(values)
        self._absorb(len(values), total, m2, lowest, max(values))
        if lowest == 0:
            self._zeros += values.count(0)
            values = [value for value in values if value]
        self._buckets.update(bucket_counts(values))

    def _absorb(self, count: int, total: float, m2: float, lowest: float, highest: float) -> None:
        """Add another set's moments (Chan, Golub, LeVeque 1979: stable where sums of squares
        are not)."""
        if not count:
            return
        if self._count:
            apart = total / count - self._sum / self._count
            m2 += apart * apart * self._count * count / (self._count + count)
        self._count += count
        self._sum += total
        self._m2 += m2
        self._min = min(self._min, lowest)
        self._max = max(self._max, highest)

    @property
    def count(self) -> int:
        """How many values were added."""
        return self._count + len(self._pending)

    @property
    def sum(self) -> float:
        """The sum of all values, 0.0 when empty."""
        self._fold()
        return self._sum

    @property
    def mean(self) -> float | None:
        """The arithmetic mean, None when empty."""
        return self.sum / self._count if self.count else None

    @property
    def stddev(self) -> float | None:
        """The population standard deviation (`numpy.std`'s default), None when empty."""
        self._fold()
        return math.sqrt(self._m2 / self._count) if self._count else None

    @property
    def min(self) -> float | None:
        """The smallest value, None when empty."""
        self._fold()
        return self._min if self._count else None

    @property
    def max(self) -> float | None:
        """The largest value, None when empty."""
        self._fold()
        return self._max if self._count else None

    def quantile(self, q: float) -> float | None:
        """The `q`-quantile (0 <= q <= 1), None when empty.

        Interpolates between neighbouring ranks as `numpy.percentile` and
        `statistics.quantiles(method="inclusive")` do; q = 0 and q = 1 are exact.
        """
        if not 0 <= q <= 1:
            raise ValueError(f"a quantile lies between 0 and 1, not {q}")
        self._fold()
        if not self._count:
            return None
        rank = q * (self._count - 1)
        lower = math.floor(rank)
        low = self._at_rank(lower)
        if rank == lower:
            return low
        return low + (rank - lower) * (self._at_rank(lower + 1) - low)

    def known_quantile(self, q: float) -> float | None:
        """The same for people to read: None where no value lies beyond it."""
        return self.quantile(q) if self.count >= least_values(q) else None

    def counts_up_to(self, bounds: Sequence[float]) -> list[int]:
        """How many values are at most each of `bounds` (>= 0); one less than 0.5 % away from a
        bound may stand on the wrong side of it, then for ever."""
        self._fold()
        values, counts = zip(*self._cumulative(), strict=True)
        return [counts[bisect_right(values, bound) - 1] for bound in bounds]

    def _at_rank(self, rank: int) -> float:
        if rank == 0:
            return self._min
        if rank < self._count - 1:
            for value, seen in self._cumulative():
                if seen > rank:
                    return min(max(value, self._min), self._max)
        return self._max

    def _cumulative(self) -> Iterator[tuple[float, int]]:
        seen = self._zeros
        yield 0.0, seen
        for index in sorted(self._buckets):
            seen += self._buckets[index]
            yield bucket_middle(index), seen

    def to_wire(self) -> dict[str, Any]:
        """The content as plain numbers, lists and string keys, for msgpack or JSON."""
        self._fold()
        return {
            "count": self._count,
            "sum": self._sum,
            "m2": self._m2,
            "min": self._min if self._count else None,
            "max": self._max,
            "zeros": self._zeros,
            "index": list(self._buckets.keys()),
            "in": list(self._buckets.values()),
        }

    @classmethod
    def from_wire(cls, wire: dict[str, Any]) -> Self:
        """The sketch that `to_wire` was called on."""
        sketch = cls()
        sketch._count, sketch._zeros = wire["count"], wire["zeros"]
        sketch._sum, sketch._m2, sketch._max = wire["sum"], wire["m2"], wire["max"]
        sketch._min = math.inf if wire["min"] is None else wire["min"]
        sketch._buckets.update(dict(zip(wire["index"], wire["in"], strict=True)))
        return sketch
