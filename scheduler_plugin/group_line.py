"""Groups in the order of their oldest request, of which only the first few are looked at."""

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator
from heapq import heapify, heappop, heappush
from typing import Generic

from scheduler_plugin.group import Group, R


class GroupLine(Generic[R]):
    """The `window` groups with the oldest heads, sorted, and the others behind them in a heap.

    Invariant: every place in `_front` comes before every valid one in `_rest`. A place in `_rest`
    is valid while `_groups` knows it.
    """

    def __init__(self, window: int) -> None:
        self._window = window
        self._front: list[int] = []
        self._rest: list[int] = []
        self._groups: dict[int, Group[R]] = {}

    def __len__(self) -> int:
        return len(self._groups)

    def __iter__(self) -> Iterator[Group[R]]:
        """The groups within the window, oldest head first."""
        return map(self._groups.__getitem__, self._front)

    @property
    def oldest(self) -> Group[R] | None:
        """The group of the oldest request of all."""
        return self._groups[self._front[0]] if self._front else None

    @property
    def oldest_place(self) -> int | None:
        """The place of the oldest request of all."""
        return self._front[0] if self._front else None

    def beyond(self, groups: Iterable[Group[R]]) -> list[Group[R]]:
        """Those of the given groups that wait behind the window, oldest head first."""
        last = self._front[-1] if self._front else 0
        places = [g.filed for g in groups if g.filed is not None and g.filed > last]
        return [self._groups[place] for place in sorted(places)]

    def file(self, group: Group[R]) -> None:
        """Bring a group to the place of its present head, or out of the line if it has none."""
        head = group.head
        place = None if head is None else head.seq
        if place == group.filed:
            return
        if group.filed is not None:
            self._unfile(group.filed)
        group.filed = place
        if place is not None:
            self._groups[place] = group
            self._insert(place)
        self._refill()

    def _unfile(self, place: int) -> None:
        del self._groups[place]
        at = bisect_left(self._front, place)
        if at < len(self._front) and self._front[at] == place:
            del self._front[at]

    def _insert(self, place: int) -> None:
        front = self._front
        if not self._rest and len(front) < self._window:
            insort(front, place)
        elif front and place < front[-1]:
            insort(front, place)
            if len(front) > self._window:
                heappush(self._rest, front.pop())
        else:
            heappush(self._rest, place)
        if len(self._rest) > 2 * len(self._groups) + self._window:
            self._drop_invalid()

    def _drop_invalid(self) -> None:
        last = self._front[-1] if self._front else -1
        self._rest = [place for place in self._groups if place > last]
        heapify(self._rest)

    def _refill(self) -> None:
        while self._rest and len(self._front) < self._window:
            place = heappop(self._rest)
            if place in self._groups and (not self._front or place > self._front[-1]):
                self._front.append(place)
