"""Least frequently used."""

from kv_tiers.store.evictions.ranked import RankedEviction


class LfuEviction(RankedEviction):
    """The one that was used least often since it came; what was popular once stays long."""

    name = "lfu"

    def add(self, key: bytes, size: int, recompute_s: float) -> None:
        self.rank(key, 1)

    def use(self, key: bytes) -> None:
        self.rank(key, self._ranks[key][0] + 1)
