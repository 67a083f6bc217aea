"""Requests that wait, and the groups of those that share a context."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

R = TypeVar("R")


@dataclass(slots=True, eq=False)
class Waiting(Generic[R]):
    """One waiting request: its place in the line (`seq`, from 0) and when it came.

    `root` is the hash of its first block, None without a full one. `group` is None for one that
    goes before all others: it has run, or held KV, before. `earlier` and `later` are its neighbours
    in its group. `crowd` is how many waited when it came, itself included, 0 until that is known.
    """

    request: R
    seq: int
    arrived_s: float
    root: object = None
    group: "Group[R] | None" = None
    is_gone: bool = False
    earlier: "Waiting[R] | None" = None
    later: "Waiting[R] | None" = None
    crowd: int = 0


class Group(Generic[R]):
    """The waiting requests of one context, first come first.

    `head` is the oldest request that is here, None when there is none. `members` also counts those
    that were offered and skipped and will come back; `filed` is the place under which a `GroupLine`
    keeps the group.
    """

    __slots__ = ("_tail", "anchor", "filed", "head", "is_recent", "key", "members")

    def __init__(self, key: object = None) -> None:
        self.key = key
        self.anchor: object = None
        self.members = 0
        self.filed: int | None = None
        self.is_recent = False
        self.head: Waiting[R] | None = None
        self._tail: Waiting[R] | None = None

    def add(self, entry: Waiting[R]) -> None:
        """Append the newest."""
        self.expect(entry)
        self._insert(entry, None)

    def expect(self, entry: Waiting[R]) -> None:
        """One that is given back later for the first time becomes a member."""
        entry.group = self
        self.members += 1

    def give_back(self, entries: Iterable[Waiting[R]]) -> None:
        """Put taken ones back to their places, all in one walk."""
        later = self.head
        for entry in sorted(entries, key=lambda entry: entry.seq):
            while later is not None and later.seq < entry.seq:
                later = later.later
            self._insert(entry, later)

    def take(self, entry: Waiting[R]) -> None:
        """Take out one that is here; it stays a member until it is admitted or given up."""
        earlier, later = entry.earlier, entry.later
        if earlier is None:
            self.head = later
        else:
            earlier.later = later
        if later is None:
            self._tail = earlier
        else:
            later.earlier = earlier
        entry.earlier = entry.later = None

    def _insert(self, entry: Waiting[R], later: Waiting[R] | None) -> None:
        """Before `later`, at the end for None."""
        earlier = self._tail if later is None else later.earlier
        entry.earlier, entry.later = earlier, later
        if earlier is None:
            self.head = entry
        else:
            earlier.later = entry
        if later is None:
            self._tail = entry
        else:
            later.earlier = entry
