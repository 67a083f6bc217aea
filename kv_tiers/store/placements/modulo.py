"""A hash modulo the number of nodes."""

from collections.abc import Sequence
from hashlib import sha256

from kv_tiers.store.placement import Placement


class Modulo(Placement):
    """The hash of the place modulo the number of nodes, and those that follow by name.

    When N becomes N + 1, all but one in N + 1 move, whether N is prime or not.
    """

    name = "modulo"

    def order(self, place: bytes, nodes: Sequence[str]) -> tuple[str, ...]:
        ring = sorted(set(nodes))
        if not ring:
            return ()
        first = int.from_bytes(sha256(place).digest()) % len(ring)
        return (*ring[first:], *ring[:first])
