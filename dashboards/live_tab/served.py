"""What the tab keeps of requests: a timeline of the last ones, and figures of each context."""

import csv
import io
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from dashboards.live_tab.series import short_of_whole
from loadgen.record import COLUMNS
from loadgen.runs.csv_log import with_formula
from loadgen.stats.metrics import CATALOG, figure_of
from loadgen.stats.sketch import Sketch
from loadgen.swarm.sending.ledger import Row

MOST_ERROR_CHARACTERS = 160

_AT = {name: COLUMNS.index(name) for name in COLUMNS}
_TEXTS = ("request_id", "context_id", "rag_context_id", "outcome", "error", "late")


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
    late_ms: float | None = None
    """How long it had waited, of one that was cut off late."""

    @property
    def latency_ms(self) -> float | None:
        """What counts as TTFT: of a late request what it had waited for it at least."""
        if self.late_ms is not None and self.ttft_ms is None:
            return self.late_ms
        return self.ttft_ms if self.outcome == "ok" or self.late_ms is not None else None

    def cached_share(self, host_tells: bool) -> float | None:
        """Of its own prompt, by the catalogue's rule: a reply that does not say it took 0 tokens
        from a cache where the host tells of others."""
        cached = self.cached_tokens
        if cached is None and host_tells and self.outcome == "ok":
            cached = 0
        return cached_share(cached, self.prompt_tokens)


def cached_share(cached_tokens: int | None, prompt_tokens: int | None) -> float | None:
    """As the catalogue of metrics has it, of any requests; None where the host does not tell."""
    counts = {"cached_tokens": cached_tokens, "prompt_tokens": prompt_tokens}
    return figure_of(CATALOG["cached_share"], counts, 0.0)


def served(rows: list[Row] | str) -> Iterator[Served]:
    """Those of the rows that ended by themselves, well or badly."""
    if isinstance(rows, str):
        found = (partial(_parsed, cells) for cells in csv.reader(io.StringIO(rows)))
    else:
        found = (partial(getattr, record) for record, _ in rows)
    return (_served(value) for value in found if value("outcome") != "cancelled")


def _served(value: Callable[[str], Any]) -> Served:
    """Of a request that has the value of each column by its name."""
    retrieved = value("retrieval_ms") is not None
    return Served(
        request_id=value("request_id"),
        context_id=value("rag_context_id" if retrieved else "context_id"),
        first_token_s=value("first_token_s"),
        end_s=value("end_s"),
        ttft_ms=value("ttft_ms"),
        prompt_tokens=value("prompt_tokens"),
        cached_tokens=value("cached_tokens"),
        outcome=value("outcome"),
        error=value("error")[:MOST_ERROR_CHARACTERS],
        late_ms=value("e2e_ms") if value("late") in (True, "true") else None,
    )


def _parsed(cells: list[str], name: str) -> Any:
    cell = cells[_AT[name]]
    if name in _TEXTS:
        return with_formula(cell)
    return (int if name.endswith("_tokens") else float)(cell) if cell else None


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
        self._host_tells = False

    def add(self, request: Served) -> None:
        """Append a request, and forget the oldest where there are too many."""
        context_id = request.context_id
        if context_id not in self._numbers:
            self._numbers[context_id] = self._next_number
            self._next_number += 1
        self._uses[context_id] += 1
        self._host_tells |= request.cached_tokens is not None
        self._ring.append(request)
        self._added += 1
        if len(self._ring) > self._most_marks:
            released = self._ring.popleft().context_id
            self._uses[released] -= 1
            if not self._uses[released]:
                del self._uses[released], self._numbers[released]

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
        share = short_of_whole(request.cached_share(self._host_tells))
        mark = (
            self._numbers[request.context_id],
            round(served_s, 4),
            None if request.ttft_ms is None else round(request.ttft_ms, 1),
            None if share is None else round(share, 4),
            request.request_id,
        )
        return mark if request.outcome == "ok" else (*mark, request.outcome, request.error)


MOST_CONTEXTS = 256
"""So many are told apart, those that came first; requests of all further ones are `others`."""


@dataclass(slots=True)
class ContextFigures:
    """What the requests of a context add up to; tokens are of those that ended `ok`, as is TTFT,
    in which late ones count with what they had waited."""

    requests: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    ttft_ms: Sketch = field(default_factory=Sketch)

    def add(self, request: Served) -> None:
        """Count one request."""
        self.requests += 1
        if request.latency_ms is not None:
            self.ttft_ms.add(max(request.latency_ms, 0.0))
        if request.outcome != "ok":
            self.failed += 1
            return
        self.prompt_tokens += request.prompt_tokens or 0
        self.cached_tokens += request.cached_tokens or 0

    def merge(self, other: "ContextFigures") -> None:
        """Add all of `other`."""
        self.requests += other.requests
        self.failed += other.failed
        self.prompt_tokens += other.prompt_tokens
        self.cached_tokens += other.cached_tokens
        self.ttft_ms.merge(other.ttft_ms)


class ContextTable:
    """The figures of each context; `others` are those of contexts that came too late."""

    def __init__(self, most_contexts: int = MOST_CONTEXTS) -> None:
        self._figures: dict[str, ContextFigures] = {}
        self._others = ContextFigures()
        self._most_contexts = most_contexts
        self._host_tells = False

    def add(self, request: Served) -> None:
        """Count one request under its context."""
        is_ok = request.outcome == "ok"
        self._host_tells |= is_ok and request.cached_tokens is not None
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

    def rows(self, number: int) -> list[tuple[str | None, ContextFigures]]:
        """The same as rows, of which those of others, if there are any, have no name."""
        top, others = self.top(number)
        return [*top, (None, others)] if others.requests else [*top]

    def cached_tokens(self, figures: ContextFigures) -> int | None:
        """Of these figures; None where the host told none of any context."""
        return figures.cached_tokens if self._host_tells else None

    def cached_share(self, figures: ContextFigures) -> float | None:
        """The same over all prompt tokens, 0 to 1."""
        return cached_share(self.cached_tokens(figures), figures.prompt_tokens)
