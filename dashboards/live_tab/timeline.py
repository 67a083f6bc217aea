"""The last few thousand requests, to be drawn in the order in which they were served."""

from collections import Counter, deque
from typing import Any, NamedTuple

from dashboards.live_tab.served import Served

MOST_MARKS = 3000


class Marks(NamedTuple):
    """`marks` from number `first` on, and the names of the contexts that they speak of."""

    first: int
    marks: list[tuple[Any, ...]]
    names: dict[int, str]


class Timeline:
    """A ring of marks. Contexts have numbers, from 0 in the order of their first appearance.

    A context of which no mark is left gives its number up and gets a new one if it comes back, so
    that names do not grow beyond the ring.
    """

    def __init__(self, most_marks: int = MOST_MARKS) -> None:
        self._ring: deque[Served] = deque()
        self._most_marks = most_marks
        self._added = 0
        self._next_number = 0
        self._numbers: dict[str, int] = {}
        self._uses: Counter[str] = Counter()

    def add(self, request: Served) -> None:
        """Append a request, and forget the oldest where there are too many."""
        context_id = request.context_id
        if context_id not in self._numbers:
            self._numbers[context_id] = self._next_number
            self._next_number += 1
        self._uses[context_id] += 1
        self._ring.append(request)
        self._added += 1
        if len(self._ring) > self._most_marks:
            self._release(self._ring.popleft().context_id)

    def number(self, context_id: str) -> int | None:
        """The number of a context that has a mark."""
        return self._numbers.get(context_id)

    def since(self, number: int) -> Marks:
        """The marks from that number on which are still there.

        A mark is: number of the context, when it was served in seconds since the run's start,
        TTFT in ms, cached share of its prompt or None, request id, and for a failure its outcome
        and error.
        """
        oldest = self._added - len(self._ring)
        first = min(max(number, oldest), self._added)
        new = [self._ring[at - oldest] for at in range(first, self._added)]
        names = {self._numbers[each.context_id]: each.context_id for each in new}
        return Marks(first, [self._mark(each) for each in new], names)

    def _mark(self, request: Served) -> tuple[Any, ...]:
        served_s = request.end_s if request.first_token_s is None else request.first_token_s
        share = request.cached_share
        mark = (
            self._numbers[request.context_id],
            round(served_s, 4),
            None if request.ttft_ms is None else round(request.ttft_ms, 1),
            None if share is None else round(share, 3),
            request.request_id,
        )
        return mark if request.outcome == "ok" else (*mark, request.outcome, request.error)

    def _release(self, context_id: str) -> None:
        self._uses[context_id] -= 1
        if not self._uses[context_id]:
            del self._uses[context_id], self._numbers[context_id]
