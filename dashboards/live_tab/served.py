"""What the tab keeps of requests: a timeline of the last ones, and figures of each context."""

import csv
import io
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from loadgen.record import COLUMNS, RequestRecord
from loadgen.runs.csv_log import without_formula
from loadgen.stats.sketch import Sketch
from loadgen.swarm.sending.ledger import Row

MOST_ERROR_CHARACTERS = 160

_AT = {name: COLUMNS.index(name) for name in COLUMNS}


@dataclass(frozen=True, slots=True)
class Served:
    """One request that the host has answered or failed; `context_id` is the one in its prompt.

    `first_token_s` counts from the run's start and is None where no token came.
    """

    request_id: str
    context_id: str
    first_token_s: float | None
    end_s: float
    ttft_ms: float | None
    prompt_tokens: int | None
    cached_tokens: int | None
    outcome: str
    error: str

    @property
    def cached_share(self) -> float | None:
        """Cached over all prompt tokens, 0 to 1; None where the host does not tell."""
        if self.cached_tokens is None or not self.prompt_tokens:
            return None
        return self.cached_tokens / self.prompt_tokens


def served(rows: list[Row] | str) -> Iterator[Served]:
    """Those of the rows that ended by themselves, well or badly."""
    if isinstance(rows, str):
        for cells in csv.reader(io.StringIO(rows)):
            if cells[_AT["outcome"]] != "cancelled":
                yield _of_cells(cells)
        return
    for record, _ in rows:
        if record.outcome != "cancelled":
            yield _of_record(record)


def _of_record(record: RequestRecord) -> Served:
    retrieved = record.retrieval_ms is not None
    return Served(
        request_id=record.request_id,
        context_id=record.rag_context_id if retrieved else record.context_id,
        first_token_s=record.first_token_s,
        end_s=record.end_s,
        ttft_ms=record.ttft_ms,
        prompt_tokens=record.prompt_tokens,
        cached_tokens=record.cached_tokens,
        outcome=record.outcome,
        error=record.error[:MOST_ERROR_CHARACTERS],
    )


def _of_cells(cells: list[str]) -> Served:
    retrieved = bool(cells[_AT["retrieval_ms"]])
    return Served(
        request_id=cells[_AT["request_id"]],
        context_id=_text(cells[_AT["rag_context_id" if retrieved else "context_id"]]),
        first_token_s=_parsed_number(cells[_AT["first_token_s"]]),
        end_s=float(cells[_AT["end_s"]]),
        ttft_ms=_parsed_number(cells[_AT["ttft_ms"]]),
        prompt_tokens=_parsed_whole(cells[_AT["prompt_tokens"]]),
        cached_tokens=_parsed_whole(cells[_AT["cached_tokens"]]),
        outcome=cells[_AT["outcome"]],
        error=_text(cells[_AT["error"]])[:MOST_ERROR_CHARACTERS],
    )


def _text(cell: str) -> str:
    """What `without_formula` made the cell of."""
    is_guarded = cell.startswith("'") and without_formula(cell[1:]) == cell
    return cell[1:] if is_guarded else cell


def _parsed_number(cell: str) -> float | None:
    return float(cell) if cell else None


def _parsed_whole(cell: str) -> int | None:
    return int(cell) if cell else None


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


MOST_CONTEXTS = 256
"""So many are told apart, those that came first; requests of all further ones are `others`."""


@dataclass(slots=True)
class ContextFigures:
    """What the requests of a context add up to; TTFT and tokens are of those that ended `ok`."""

    requests: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    tells_cached: bool = False
    ttft_ms: Sketch = field(default_factory=Sketch)

    def add(self, request: Served) -> None:
        """Count one request."""
        self.requests += 1
        if request.outcome != "ok":
            self.failed += 1
            return
        if request.ttft_ms is not None:
            self.ttft_ms.add(max(request.ttft_ms, 0.0))
        self.prompt_tokens += request.prompt_tokens or 0
        self.cached_tokens += request.cached_tokens or 0
        self.tells_cached |= request.cached_tokens is not None

    def merge(self, other: "ContextFigures") -> None:
        """Add all of `other`."""
        self.requests += other.requests
        self.failed += other.failed
        self.prompt_tokens += other.prompt_tokens
        self.cached_tokens += other.cached_tokens
        self.tells_cached |= other.tells_cached
        self.ttft_ms.merge(other.ttft_ms)

    @property
    def cached_share(self) -> float | None:
        """Cached over all prompt tokens, 0 to 1; None where the host does not tell."""
        if not self.tells_cached or not self.prompt_tokens:
            return None
        return self.cached_tokens / self.prompt_tokens


class ContextTable:
    """The figures of each context; `others` are those of contexts that came too late."""

    def __init__(self, most_contexts: int = MOST_CONTEXTS) -> None:
        self._figures: dict[str, ContextFigures] = {}
        self._others = ContextFigures()
        self._most_contexts = most_contexts

    def add(self, request: Served) -> None:
        """Count one request under its context."""
        figures = self._figures.get(request.context_id)
        if figures is None:
            if len(self._figures) >= self._most_contexts:
                self._others.add(request)
                return
            figures = self._figures[request.context_id] = ContextFigures()
        figures.add(request)

    def top(self, number: int) -> tuple[list[tuple[str, ContextFigures]], ContextFigures]:
        """The contexts with most requests, and what all others add up to."""
        ranked = sorted(self._figures.items(), key=lambda item: -item[1].requests)
        others = ContextFigures()
        others.merge(self._others)
        for _, figures in ranked[number:]:
            others.merge(figures)
        return ranked[:number], others
