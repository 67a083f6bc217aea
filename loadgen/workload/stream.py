"""The swarm's one sequence of requests, before any text is made."""

from array import array
from bisect import bisect
from collections.abc import Iterator
from itertools import accumulate, count
from random import Random

from loadgen.context import Draw
from loadgen.workload.settings import WorkloadSettings, random_bits


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
    chance = Random(random_bits(seed, "popularity", 0)).random
    order = array("I", range(contexts))
    for last in range(contexts - 1, 0, -1):
        other = int(chance() * (last + 1))
        order[last], order[other] = order[other], order[last]
    return order


class Stream:
    """An endless iterator of the draws that one worker owns.

    Every worker walks the same sequence and keeps the draws whose root is its own, so that a
    prompt is repeated only by the worker that sent it first. Together the workers send what one
    process alone would. With `repeat` each prompt costs 24 bytes of memory.
    """

    def __init__(self, settings: WorkloadSettings, worker_index: int = 0, workers: int = 1) -> None:
        """Raises ValueError unless 0 <= worker_index < workers."""
        if not 0 <= worker_index < workers:
            raise ValueError(f"worker_index {worker_index} is not in range({workers})")
        self._settings = settings
        self._popularity = Popularity(settings.contexts, settings.zipf, settings.seed)
        self._owned = self._draws(worker_index, workers)

    def __iter__(self) -> Iterator[Draw]:
        return self

    def __next__(self) -> Draw:
        return next(self._owned)

    def _draws(self, worker_index: int, workers: int) -> Iterator[Draw]:
        # Local names, and no Draw for another worker: this loop runs for every request of the
        # whole swarm in each of its workers.
        repeat, stickiness = self._settings.repeat, self._settings.stickiness
        chance = Random(random_bits(self._settings.seed, "stream", 0)).random
        pick, prompts = self._popularity.pick, _Prompts()
        asked: dict[int, int] = {}
        context = -1
        for index in count():
            if repeat and index and chance() < repeat:
                root, context, number = prompts.choose(chance())
            else:
                if context < 0 or chance() >= stickiness:
                    context = pick(chance())
                root, number = index, asked.get(context, 0)
                asked[context] = number + 1
                if repeat:
                    prompts.add(root, context, number)
            if root % workers == worker_index:
                yield Draw(index, context, number, root)


class _Prompts:
    """The different prompts drawn so far."""

    def __init__(self) -> None:
        self._roots, self._contexts, self._numbers = array("q"), array("q"), array("q")

    def add(self, root: int, context: int, number: int) -> None:
        self._roots.append(root)
        self._contexts.append(context)
        self._numbers.append(number)

    def choose(self, chance: float) -> tuple[int, int, int]:
        """Root, context and question number of the prompt that `chance` in [0, 1) stands for."""
        place = int(chance * len(self._roots))
        return self._roots[place], self._contexts[place], self._numbers[place]
