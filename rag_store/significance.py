"""How sure a mean is, and whether one way is better than another on the same queries."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

_RESAMPLES = 5000
# So many values are drawn at once: all of them would not fit into memory.
_BLOCK = 1 << 20
_SEED = 1


@dataclass(frozen=True, slots=True)
class Paired:
    """Two ways on the same queries: how often only the first is right, and only the second."""

    only_first: int
    only_second: int

    @classmethod
    def of(cls, first: Sequence[bool], second: Sequence[bool]) -> "Paired":
        """Query by query, in the same order."""
        pairs = list(zip(first, second, strict=True))
        return cls(
            sum(ours and not theirs for ours, theirs in pairs),
            sum(theirs and not ours for ours, theirs in pairs),
        )

    @property
    def p(self) -> float:
        """McNemar's exact test, two-sided: how likely so uneven counts are if both are as good.

        The smaller count is binomial with chance 1/2 among the queries that only one has right
        (McNemar, Psychometrika 1947).
        """
        count = self.only_first + self.only_second
        few = min(self.only_first, self.only_second)
        tail = sum(math.comb(count, hits) for hits in range(few + 1))
        return min(1.0, 2 * tail / (1 << count))


def mean_interval(values: Sequence[float]) -> tuple[float, float]:
    """The 95 % interval of the mean, by the percentiles of means of resamples; (0, 0) of nothing.

    The same values give the same interval (Efron, Annals of Statistics 1979).
    """
    if not values:
        return 0.0, 0.0
    random, sample = np.random.default_rng(_SEED), np.asarray(values, np.float64)
    rows = max(1, _BLOCK // len(sample))
    means = [
        random.choice(sample, (min(rows, _RESAMPLES - at), len(sample))).mean(axis=1)
        for at in range(0, _RESAMPLES, rows)
    ]
    low, high = np.percentile(np.concatenate(means), (2.5, 97.5))
    return float(low), float(high)
