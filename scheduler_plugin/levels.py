"""Priorities over contexts: the lowest priority value first, by context within it."""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Generic

from scheduler_plugin.group import R
from scheduler_plugin.order import ContextOrder

KEPT_LEVELS = 16
"""So many levels remember whom they served when nobody waits; deadlines may make many more."""


class PriorityLevels(Generic[R]):
    """One order per priority value; it takes the calls of a `ContextOrder`.

    A request that goes first does so within its priority. `_listed` has, sorted, every level at
    which someone waits, but for those where nobody can run in this step: they are `_quiet`.
    """

    def __init__(
        self, make_order: Callable[[], ContextOrder[R]], priority_of: Callable[[R], int]
    ) -> None:
        self._make_order = make_order
        self._priority_of = priority_of
        self._orders: dict[int, ContextOrder[R]] = {}
        self._listed: list[int] = []
        self._quiet: list[int] = []
        self._looked: dict[ContextOrder[R], None] = {}
        self._held: set[R] = set()
        self._offering: ContextOrder[R] | None = None
        self._popped_from: ContextOrder[R] | None = None

    def __len__(self) -> int:
        self._settle()
        return len(self._held)

    def __iter__(self) -> Iterator[R]:
        return (request for level in sorted(self._orders) for request in self._orders[level])

    @property
    def contexts(self) -> int:
        """How many groups wait, those of each priority on their own."""
        return sum(order.contexts for order in self._orders.values())

    @property
    def is_open(self) -> bool:
        """Whether `peek` may show one that can run."""
        return any(self._orders[level].is_open for level in self._listed)

    def add(self, request: R, label: str | None, chain: Sequence[object]) -> None:
        """Take in a new request with its label and the chained hashes of its full blocks."""
        self._enter(request).add(request, label, chain)

    def add_first(self, request: R) -> None:
        """Take in a request that goes before all others of its priority."""
        self._offering = None
        self._enter(request).add_first(request)

    def give_back(self, requests: Iterable[R]) -> None:
        """Take back skipped requests, the first of them last."""
        self._offering = None
        by_order: dict[ContextOrder[R], list[R]] = {}
        for request in requests:
            by_order.setdefault(self._enter(request), []).append(request)
        for order, those in by_order.items():
            order.give_back(those)
        self.look_again()

    def look_again(self) -> None:
        """A step of the engine is over: what was blocked may run in the next."""
        looked, self._looked = self._looked, {}
        for order in looked:
            order.look_again()
        quiet, self._quiet = self._quiet, []
        for level in quiet:
            if level in self._orders:
                self._list(level)

    def remove(self, requests: Iterable[R]) -> None:
        """Forget requests; those that are not here are passed over."""
        self._offering = None
        by_level: dict[int, list[R]] = {}
        for request in requests:
            by_level.setdefault(self._priority_of(request), []).append(request)
        for level in by_level.keys() & self._orders.keys():
            self._held.difference_update(by_level[level])
            self._orders[level].remove(by_level[level])
            if not len(self._orders[level]):
                self._unlist(level)

    def peek(self) -> R:
        """The next request; a blocked one where all are. Raises IndexError when nobody waits."""
        self._settle()
        self._offering = self._first_order()
        return self._offering.peek()

    def pop(self) -> R:
        """Take out what the last `peek` showed. Raises IndexError when nobody waits."""
        if self._offering is None:
            self.peek()
        order, self._offering = self._offering, None
        assert order is not None
        request = order.pop()
        self._popped_from = order
        self._held.discard(request)
        return request

    def _settle(self) -> None:
        """Let the order that was popped from see now what became of its request."""
        if self._popped_from is not None:
            len(self._popped_from)
            self._popped_from = None

    def _enter(self, request: R) -> ContextOrder[R]:
        """The order of a request that comes in."""
        level = self._priority_of(request)
        if level not in self._orders:
            self._orders[level] = self._make_order()
        self._list(level)
        self._held.add(request)
        return self._orders[level]

    def _first_order(self) -> ContextOrder[R]:
        """The most urgent order of which someone can run, else one that has someone.

        The others before it are taken off the list.
        """
        while self._listed:
            level = self._listed[0]
            order = self._orders[level]
            self._looked[order] = None
            if order.has_ready:
                return order
            if len(order):
                self._quiet.append(level)
            self._unlist(level)
        for quiet in map(self._orders.get, self._quiet):
            if quiet is not None and len(quiet):
                return quiet
        raise IndexError("no request is waiting")

    def _list(self, level: int) -> None:
        place = bisect_left(self._listed, level)
        if self._listed[place : place + 1] != [level]:
            self._listed.insert(place, level)

    def _unlist(self, level: int) -> None:
        """Nobody waits there any more; the order itself is kept while someone may come back."""
        place = bisect_left(self._listed, level)
        if self._listed[place : place + 1] == [level]:
            del self._listed[place]
        if len(self._orders) > KEPT_LEVELS and self._orders[level].is_idle:
            del self._orders[level]
