"""Whose bytes go over a link next, where several clients wait for it.

A scheduler has one method. It sees, for each client that waits, what waits, and names one; what is
at the head of that client's queue is then sent whole.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, slots=True)
class WaitingBytes:
    """A client's queue, which is not empty: bytes at its head and in all of it, the pieces they are
    in, and the number of its first piece in the order of arrival at the link."""

    head_bytes: int
    all_bytes: int
    pieces: int
    arrival: int


class LinkScheduler(ABC):
    """A subclass has this method and a name; it may keep what it likes between calls."""

    name: ClassVar[str]

    @abstractmethod
    def choose(self, waiting: Mapping[str, WaitingBytes]) -> str:
        """The client whose head is sent; someone waits."""
