"""How much work is let in at once; the rest is told to come again."""

from collections.abc import Iterator
from contextlib import contextmanager

from rag_store.service.refusal import Problem, Refusal


class Gate:
    """Counts what is inside; used on the event loop only."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._inside = 0

    @property
    def inside(self) -> int:
        """How many are being worked on or wait for it."""
        return self._inside

    @contextmanager
    def entered(self, count: int) -> Iterator[None]:
        """Hold `count` places, which must not be above the limit. Raises Refusal (429)."""
        if self._inside + count > self._limit:
            message = (
                f"{self._inside} of {self._limit} places in the queue are taken:"
                " send this again in a second"
            )
            raise Refusal(Problem(429, message, "queue_full"))
        self._inside += count
        try:
            yield
        finally:
            self._inside -= count
