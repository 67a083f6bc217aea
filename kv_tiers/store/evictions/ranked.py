"""Whoever has the lowest rank goes first."""

import heapq
from itertools import count

from kv_tiers.store.evictions.eviction import TierEviction


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
