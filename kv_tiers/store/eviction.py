"""What a tier of bounded bytes gives up first.

A policy is told what comes, is used and goes, and names a victim. Chunks of a context are used from
the last to the first: where times decide, the end of a prefix goes before its beginning, without
which it is worth nothing.
"""

import heapq
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import ClassVar


class TierEviction(ABC):
    """A subclass has a name and these methods. Keys are of what is there, but for `add`'s."""

    name: ClassVar[str]

    def __init__(self, capacity_bytes: int) -> None:
        self.capacity_bytes = capacity_bytes

    @abstractmethod
    def add(self, key: bytes, size: int, recompute_s: float) -> None:
        """It is new, of so many bytes, and would take so long to be computed again. The use of the
        context with which it came follows."""

    @abstractmethod
    def use(self, key: bytes) -> None:
        """Somebody read it."""

    def use_context(self, keys: Sequence[bytes]) -> None:
        """Somebody kept or read these chunks of one context, in their order from its start."""
        for key in reversed(keys):
            self.use(key)

    @abstractmethod
    def victim(self) -> bytes:
        """Whom to give up now; it is gone then. Something is there."""

    @abstractmethod
    def remove(self, key: bytes) -> None:
        """It has gone for another reason."""


class LruEviction(TierEviction):
    """The one that was used longest ago."""

    name = "lru"

    def __init__(self, capacity_bytes: int) -> None:
        super().__init__(capacity_bytes)
        self._keys: OrderedDict[bytes, None] = OrderedDict()

    def add(self, key: bytes, size: int, recompute_s: float) -> None:
        self._keys[key] = None

    def use(self, key: bytes) -> None:
        self._keys.move_to_end(key)

    def victim(self) -> bytes:
        return self._keys.popitem(last=False)[0]

    def remove(self, key: bytes) -> None:
        del self._keys[key]


class RankedEviction(TierEviction):
    """The one of the lowest rank, and of equal ones that which has had it longest."""

    def __init__(self, capacity_bytes: int) -> None:
        super().__init__(capacity_bytes)
        self._ranks: dict[bytes, tuple[float, int]] = {}
        self._heap: list[tuple[float, int, bytes]] = []
        self._numbers = count()

    def victim(self) -> bytes:
        while True:
            rank, number, key = heapq.heappop(self._heap)
            if self._ranks.get(key) == (rank, number):
                del self._ranks[key]
                self.given_up(rank)
                return key

    def remove(self, key: bytes) -> None:
        del self._ranks[key]

    def given_up(self, rank: float) -> None:
        """A victim had this rank."""

    def rank(self, key: bytes, rank: float) -> None:
        """From now on."""
        self._ranks[key] = rank, next(self._numbers)
        heapq.heappush(self._heap, (*self._ranks[key], key))
        if len(self._heap) > 4 * len(self._ranks) + 64:  # mostly of ranks that are over
            self._heap = [(*told, each) for each, told in self._ranks.items()]
            heapq.heapify(self._heap)


class LfuEviction(RankedEviction):
    """The one that was used least often since it came; what was popular once stays long."""

    name = "lfu"

    def add(self, key: bytes, size: int, recompute_s: float) -> None:
        self.rank(key, 1)

    def use(self, key: bytes) -> None:
        self.rank(key, self._ranks[key][0] + 1)


class CostAwareEviction(RankedEviction):
    """The one whose bytes save the least computing, aged by what has gone (GreedyDual-Size, Cao and
    Irani, 1997).

    A chunk is worth nothing without those before it, and gives these their worth: from the start of
    a context, as many chunks count as one as have the most worth a byte together, and so on with
    the rest (Sidney, 1975). One that contexts share keeps its highest rank. So no beginning goes
    before its end, as none does where leaves of a tree are given up alone (RAGCache, Jin and
    others, 2024).
    """

    name = "cost"

    def __init__(self, capacity_bytes: int) -> None:
        super().__init__(capacity_bytes)
        self._costs: dict[bytes, tuple[float, int]] = {}
        self._worth: dict[bytes, float] = {}
        """Of those whose context was used: seconds a byte."""
        self._age, self._highest = 0.0, 0.0

    def add(self, key: bytes, size: int, recompute_s: float) -> None:
        self._costs[key] = recompute_s, max(size, 1)
        self.rank(key, self._highest)  # until its context is there: no end before its beginning

    def use(self, key: bytes) -> None:
        recompute_s, size = self._costs[key]
        self._rise(key, self._worth.get(key, recompute_s / size))

    def use_context(self, keys: Sequence[bytes]) -> None:
        end = len(keys)
        for recompute_s, size, begin in reversed(self._blocks(keys)):
            for key in reversed(keys[begin:end]):
                self._rise(key, recompute_s / size)
                self._worth[key] = recompute_s / size
            end = begin

    def victim(self) -> bytes:
        key = super().victim()
        self._forget(key)
        return key

    def remove(self, key: bytes) -> None:
        super().remove(key)
        self._forget(key)

    def given_up(self, rank: float) -> None:
        self._age = rank

    def _rise(self, key: bytes, worth: float) -> None:
        before = self._ranks[key][0] if key in self._worth else 0.0
        rank = max(before, self._age + worth)
        self._highest = max(self._highest, rank)
        self.rank(key, rank)

    def _blocks(self, keys: Sequence[bytes]) -> list[tuple[float, int, int]]:
        """Seconds, bytes and the first index of each: of falling worth a byte."""
        blocks: list[tuple[float, int, int]] = []
        for at, key in enumerate(keys):
            (recompute_s, size), begin = self._costs[key], at
            while blocks and recompute_s / size >= blocks[-1][0] / blocks[-1][1]:
                before_s, before_size, begin = blocks.pop()
                recompute_s, size = before_s + recompute_s, before_size + size
            blocks.append((recompute_s, size, begin))
        return blocks

    def _forget(self, key: bytes) -> None:
        del self._costs[key]
        self._worth.pop(key, None)


class ArcEviction(TierEviction):
    """What was used once beside what was used again, in shares of bytes that learn from the keys of
    what went too early (Megiddo and Modha, 2003)."""

    name = "arc"

    def __init__(self, capacity_bytes: int) -> None:
        super().__init__(capacity_bytes)
        self._once, self._again, self._once_gone, self._again_gone = (SizedKeys() for _ in range(4))
        self._fresh: set[bytes] = set()
        """Whose first use is that of the context with which they came."""
        self._share = 0.0
        """Bytes that what was used once may have."""

    def add(self, key: bytes, size: int, recompute_s: float) -> None:
        self._fresh.add(key)
        once, again = self._once_gone.bytes, self._again_gone.bytes
        if key in self._once_gone:
            self._once_gone.take(key)
            more = size * max(1.0, again / once)
            self._share = min(float(self.capacity_bytes), self._share + more)
            self._again.add(key, size)
        elif key in self._again_gone:
            self._again_gone.take(key)
            less = size * max(1.0, once / again)
            self._share = max(0.0, self._share - less)
            self._again.add(key, size)
        else:
            self._once.add(key, size)
        self._forget()

    def use(self, key: bytes) -> None:
        here = self._once if key in self._once else self._again
        (here if key in self._fresh else self._again).add(key, here.take(key))
        self._fresh.discard(key)

    def victim(self) -> bytes:
        of_once = self._once.keys and (self._once.bytes > self._share or not self._again.keys)
        here, gone = (self._once, self._once_gone) if of_once else (self._again, self._again_gone)
        key, size = here.oldest()
        gone.add(key, size)
        self._fresh.discard(key)
        return key

    def remove(self, key: bytes) -> None:
        (self._once if key in self._once else self._again).take(key)
        self._fresh.discard(key)

    def _forget(self) -> None:
        """Keys of what has gone: of as many bytes as there is room, in each list."""
        while self._once_gone.keys and (
            self._once.bytes + self._once_gone.bytes > self.capacity_bytes
        ):
            self._once_gone.oldest()
        while self._again_gone.keys and (
            self._again.bytes + self._again_gone.bytes > 2 * self.capacity_bytes
        ):
            self._again_gone.oldest()


class SizedKeys:
    """Keys with their sizes, oldest first."""

    def __init__(self) -> None:
        self.keys: OrderedDict[bytes, int] = OrderedDict()
        self.bytes = 0

    def __contains__(self, key: bytes) -> bool:
        return key in self.keys

    def add(self, key: bytes, size: int) -> None:
        self.keys[key] = size
        self.bytes += size

    def take(self, key: bytes) -> int:
        size = self.keys.pop(key)
        self.bytes -= size
        return size

    def oldest(self) -> tuple[bytes, int]:
        key, size = self.keys.popitem(last=False)
        self.bytes -= size
        return key, size


EVICTIONS: Mapping[str, Callable[[int], TierEviction]] = {
    each.name: each for each in (LruEviction, LfuEviction, ArcEviction, CostAwareEviction)
}
