"""What all handlers share: the library once it is open, the gates, the counters."""

from dataclasses import dataclass

from rag_store.document_index import Size
from rag_store.library import Library
from rag_store.service.metrics import Metrics
from rag_store.service.refusal import Gate, Refusal


@dataclass(frozen=True, slots=True)
class Limits:
    """How much is let in: queries at once, items in a batch, changes at once, bytes in a body."""

    queue: int = 512
    batch: int = 256
    changes: int = 16
    body_bytes: int = 4_000_000


class State:
    """Lives as long as the service; belongs to its event loop."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.queries = Gate(limits.queue)
        self.changes = Gate(limits.changes)
        self.metrics = Metrics(self._size, lambda: self.queries.inside)
        self.opened: Library | None = None

    @property
    def library(self) -> Library:
        """The library. Raises Refusal (503) until it is open."""
        if self.opened is None:
            message = "the library is being opened: ask again in a second"
            raise Refusal(503, message, "opening")
        return self.opened

    def _size(self) -> Size:
        return self.opened.size if self.opened else Size(0, 0)
