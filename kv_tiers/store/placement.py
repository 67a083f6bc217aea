"""Which nodes hold a chunk: an order that every client computes from the names alone.

Chunks of one context are placed in runs. A prefix is worth what it holds before its first gap, so
that chunks which are each placed alone lose nearly every prefix with one node; of contexts that lie
whole on a node, only those of that node are lost.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import ClassVar

WHOLE_CONTEXT = 0
"""As a length of runs: a context is one run."""
PREFIX = b"kvswarm:"
_PLACE_BYTES, _KEY_BYTES = 12, 16
WIRE_BYTES = len(PREFIX) + _PLACE_BYTES + _KEY_BYTES


class Placement(ABC):
    """A rule for all places. A subclass has this method and a name."""

    name: ClassVar[str]

    @abstractmethod
    def order(self, place: bytes, nodes: Sequence[str]) -> tuple[str, ...]:
        """All nodes, the one that should hold `place` first. It does not depend on the order in
        which they are given."""


@dataclass(frozen=True, slots=True)
class StoreKey:
    """A chunk by its `key`, of any length, placed by `place`: the key of the first of its run."""

    key: bytes
    place: bytes

    @classmethod
    def alone(cls, key: bytes) -> "StoreKey":
        """A chunk of which no run is known."""
        return cls(key, key)

    @property
    def wire(self) -> bytes:
        """Its name on a node, which also tells its place: so a node's chunks can be moved by
        whoever sees only their names."""
        place = blake2b(self.place, digest_size=_PLACE_BYTES).digest()
        return PREFIX + place + blake2b(self.key, digest_size=_KEY_BYTES).digest()


def place_of(wire: bytes) -> bytes:
    """The part of a name by which nodes are chosen."""
    return wire[len(PREFIX) : len(PREFIX) + _PLACE_BYTES]


def in_runs(keys: Sequence[bytes], run_chunks: int = WHOLE_CONTEXT) -> list[StoreKey]:
    """The chunks of one context, in their order from its start, in runs of so many.

    Keys are of whole prefixes: the same chunk then has the same run in every context that shares
    it. Raises ValueError for a negative length.
    """
    if run_chunks < 0:
        raise ValueError(f"runs of {run_chunks} chunks: give 1 or more, 0 for whole contexts")
    length = run_chunks or len(keys) or 1
    return [StoreKey(key, keys[at - at % length]) for at, key in enumerate(keys)]
