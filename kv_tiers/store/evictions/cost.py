"""Computing saved by a byte."""

from collections.abc import Sequence

from kv_tiers.store.evictions.ranked import RankedEviction


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
