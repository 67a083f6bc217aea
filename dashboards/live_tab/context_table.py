"""Requests, TTFT and cached share of each context, of a bounded number of contexts."""

from dataclasses import dataclass, field

from dashboards.live_tab.served import Served
from loadgen.stats.sketch import Sketch

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
