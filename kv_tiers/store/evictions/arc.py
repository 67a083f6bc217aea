"""Adaptive replacement."""

from collections import OrderedDict

from kv_tiers.store.evictions.eviction import TierEviction


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
