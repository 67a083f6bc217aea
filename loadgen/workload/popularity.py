"""How often each context is asked for."""

from array import array
from bisect import bisect
from itertools import accumulate
from random import Random

from loadgen.workload.dice import roll


class Popularity:
    """Zipf's law over the contexts in a seeded order: rank k has the weight k**-zipf.

    With `zipf` 0 all are alike. A pick takes O(log contexts); the tables take 12 bytes a context.
    """

    def __init__(self, contexts: int, zipf: float, seed: int) -> None:
        self._contexts = contexts
        self._by_rank: array[int] | None = None
        if zipf > 0:
            self._by_rank = _permutation(contexts, seed)
            weights = (rank**-zipf for rank in range(1, contexts + 1))
            self._cumulative = array("d", accumulate(weights))

    def pick(self, chance: float) -> int:
        """The context that a random number from [0, 1) stands for."""
        if self._by_rank is None:
            return int(chance * self._contexts)
        place = chance * self._cumulative[-1]
        # Rounding may lift `place` to the very end: the last rank is the limit.
        return self._by_rank[bisect(self._cumulative, place, 0, self._contexts - 1)]


def _permutation(contexts: int, seed: int) -> "array[int]":
    """Fisher and Yates's shuffle, by random() alone: other methods may change with Python."""
    chance = Random(roll(seed, "popularity", 0)).random
    order = array("I", range(contexts))
    for last in range(contexts - 1, 0, -1):
        other = int(chance() * (last + 1))
        order[last], order[other] = order[other], order[last]
    return order
