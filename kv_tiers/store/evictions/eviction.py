"""What a tier of bounded bytes gives up first.

A policy is told what comes, is used and goes, and names a victim. Chunks of a context are used from
the last to the first: where times decide, the end of a prefix goes before its beginning, without
which it is worth nothing.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
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
