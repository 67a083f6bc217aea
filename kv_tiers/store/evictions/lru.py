"""Least recently used."""

from collections import OrderedDict

from kv_tiers.store.evictions.eviction import TierEviction


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
