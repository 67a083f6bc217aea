"""Priorities over contexts: the lowest priority value first, by context within it."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Generic

from scheduler_plugin.group import R
from scheduler_plugin.order import ContextOrder


class PriorityLevels(Generic[R]):
    """One order per priority value; it takes the calls of a `ContextOrder`.

    A request that goes first does so within its priority.
    """

    def __init__(
        self, make_order: Callable[[], ContextOrder[R]], priority_of: Callable[[R], int]
    ) -> None:
        self._make_order = make_order
        self._priority_of = priority_of
        self._orders: dict[int, ContextOrder[R]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._orders.values()))

    def __iter__(self) -> Iterator[R]:
        return (request for level in sorted(self._orders) for request in self._orders[level])

    @property
    def contexts(self) -> int:
        """How many groups wait, those of each priority on their own."""
        return sum(order.contexts for order in self._orders.values())

    def add(self, request: R, label: str | None, chain: Sequence[object]) -> None:
        """Take in a new request with its label and the chained hashes of its full blocks."""
        self._order_of(request).add(request, label, chain)

    def add_first(self, request: R) -> None:
        """Take in a request that goes before all others of its priority."""
        self._order_of(request).add_first(request)

    def give_back(self, requests: Iterable[R]) -> None:
        """Take back skipped requests, the first of them last."""
        for request in requests:
            self._order_of(request).give_back([request])

    def remove(self, requests: Iterable[R]) -> None:
        """Forget requests; those that are not here are passed over."""
        requests = tuple(requests)
        for order in self._orders.values():
            order.remove(requests)

    def peek(self) -> R:
        """The next request. Raises IndexError when nobody waits."""
        return self._first_order().peek()

    def pop(self) -> R:
        """Take out what the last `peek` showed. Raises IndexError when nobody waits."""
        return self._first_order().pop()

    def _order_of(self, request: R) -> ContextOrder[R]:
        priority = self._priority_of(request)
        if priority not in self._orders:
            self._orders[priority] = self._make_order()
        return self._orders[priority]

    def _first_order(self) -> ContextOrder[R]:
        """The most urgent order that has someone; the others are forgotten on the way."""
        for level in sorted(self._orders):
            if len(self._orders[level]):
                return self._orders[level]
        raise IndexError("no request is waiting")
