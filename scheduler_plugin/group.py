"""Requests that wait, and the groups of those that share a context."""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

R = TypeVar("R")


@dataclass(slots=True, eq=False)
class Waiting(Generic[R]):
    """One waiting request: its place in the line (`seq`, from 0) and when it came.

    `root` is the hash of its first block, None without a full one. `group` is None for one that
    goes before all others: it has run, or held KV, before.
    """

    request: R
    seq: int
    arrived_s: float
    root: object = None
    group: "Group[R] | None" = None
    is_gone: bool = False


class Group(Generic[R]):
    """The waiting requests of one context, first come first.

    `head` is the oldest request that is here, None when there is none. `members` also counts those
    that were offered and skipped and will come back; `filed` is the place under which a `GroupLine`
    keeps the group.
    """

    __slots__ = ("_gone", "_line", "anchor", "filed", "head", "is_recent", "key", "members")

    def __init__(self, key: object = None) -> None:
        self.key = key
        self.anchor: object = None
        self.members = 0
        self.filed: int | None = None
        self.is_recent = False
        self.head: Waiting[R] | None = None
        self._line: deque[Waiting[R]] = deque()
        self._gone = 0

    def add(self, entry: Waiting[R]) -> None:
        """Append the newest."""
        entry.group = self
        self.members += 1
        self._line.append(entry)
        if self.head is None:
            self.head = entry

    def take(self) -> Waiting[R]:
        """Take the head out; it stays a member until `leave` is called. Raises IndexError."""
        entry = self._line.popleft()
        self._find_head()
        return entry

    def give_back(self, entry: Waiting[R]) -> None:
        """Put a taken one back to its place."""
        line = self._line
        place = 0
        while place < len(line) and line[place].seq < entry.seq:
            place += 1
        line.insert(place, entry)
        self.head = line[0]

    def drop(self, entry: Waiting[R]) -> None:
        """Forget one that is here; it stays a member until `leave` is called."""
        entry.is_gone = True
        self._gone += 1
        if 2 * self._gone > len(self._line):
            self._line = deque(self)
            self._gone = 0
        self._find_head()

    def leave(self) -> None:
        """A member was admitted or given up."""
        self.members -= 1

    def __iter__(self) -> Iterator[Waiting[R]]:
        return (entry for entry in self._line if not entry.is_gone)

    def _find_head(self) -> None:
        line = self._line
        while line and line[0].is_gone:
            line.popleft()
            self._gone -= 1
        self.head = line[0] if line else None
