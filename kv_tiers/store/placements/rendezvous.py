"""Rendezvous hashing."""

from collections.abc import Sequence
from hashlib import blake2b

from kv_tiers.store.placement import Placement


class Rendezvous(Placement):
    """The highest of a hash of node and place (Thaler and Ravishankar, 1998).

    When a node comes or goes, only what it holds moves.
    """

    name = "rendezvous"

    def order(self, place: bytes, nodes: Sequence[str]) -> tuple[str, ...]:
        def weight(node: str) -> bytes:
            return blake2b(place + node.encode(), digest_size=16).digest()

        return tuple(sorted(set(nodes), key=weight, reverse=True))
