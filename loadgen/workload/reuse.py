"""How much lies between two uses of the same thing."""

from collections.abc import Hashable

SPARE_SLOTS = 64


class Recency:
    """LRU stack distances of a sequence of keys, O(log distinct keys) each.

    A key's last use has a slot in time. A Fenwick tree counts the occupied slots, so that those
    after a key's own are the other keys used since. When time has run out of slots, they are dealt
    anew in the same order. (Bennett and Kruskal 1975, with a tree as large as the distinct keys.)
    """

    def __init__(self) -> None:
        self._slots: dict[Hashable, int] = {}  # ordered by last use
        self._next = 1
        self._tree: list[int] = []
        self._deal()

    def use(self, key: Hashable) -> int | None:
        """Distinct other keys since the last use of this one; None at its first use."""
        slot = self._slots.pop(key, None)
        if slot is not None and slot == self._next - 1:
            self._slots[key] = slot
            return 0
        distance = None
        if slot is not None:
            distance = len(self._slots) + 1 - self._occupied_until(slot)
            self._occupy(slot, -1)
        if self._next == len(self._tree):
            self._deal()
        self._occupy(self._next, 1)
        self._slots[key] = self._next
        self._next += 1
        return distance

    def _occupied_until(self, slot: int) -> int:
        total = 0
        while slot:
            total += self._tree[slot]
            slot &= slot - 1
        return total

    def _occupy(self, slot: int, change: int) -> None:
        while slot < len(self._tree):
            self._tree[slot] += change
            slot += slot & -slot

    def _deal(self) -> None:
        """Give the keys the slots 1, 2, ... and room for as many uses again."""
        self._slots = {key: slot for slot, key in enumerate(self._slots, start=1)}
        used = len(self._slots)
        size = 2 * used + SPARE_SLOTS + 1
        # Node i counts the slots above i - (i & -i) up to i; the first `used` ones are occupied.
        self._tree = [max(0, min(i, used) - (i & (i - 1))) if i else 0 for i in range(size)]
        self._next = used + 1
