"""The waiting queue by context until its first error, vLLM's own from then on."""

import logging
from collections.abc import Callable, Iterable, Iterator

from vllm.v1.core.sched.request_queue import RequestQueue
from vllm.v1.request import Request, RequestStatus

from scheduler_plugin.queue import ContextQueue

LOGGER = logging.getLogger("vllm.context_scheduler")


class DisagreementError(RuntimeError):
    """The order by context does not hold what waits."""


class SafeQueue(RequestQueue):
    """Keeps its own record of what waits, so that an error in `ordered` loses no request.

    `stock` is an empty queue of vLLM's own kind; `failed` is called once, when that takes over.
    What vLLM's own queues raise for their callers' mistakes (IndexError, ValueError) is raised
    here, by the record.
    """

    def __init__(
        self, ordered: ContextQueue, stock: RequestQueue, failed: Callable[[], None]
    ) -> None:
        self._queue: ContextQueue | RequestQueue = ordered
        self._stock = stock
        self._failed = failed
        self._held: dict[Request, None] = {}
        self._offered: Request | None = None

    def add_request(self, request: Request) -> None:
        """A new request arrived."""
        self._held[request] = None
        try:
            self._queue.add_request(request)
        except Exception:
            self._fall_back()

    def peek_request(self) -> Request:
        """The request that is next. Raises IndexError."""
        if not self._held:
            raise IndexError("no request is waiting")
        try:
            offered = self._queue.peek_request()
            if offered not in self._held:
                raise DisagreementError
        except Exception:
            self._fall_back()
            offered = self._queue.peek_request()
        self._offered = offered
        return offered

    def pop_request(self) -> Request:
        """Take the offered request, to admit or to skip it. Raises IndexError.

        vLLM has made room for the one that was offered: an error here gives no other.
        """
        request = self.peek_request() if self._offered is None else self._offered
        self._offered = None
        del self._held[request]
        try:
            if self._queue.pop_request() is not request:
                raise DisagreementError
        except Exception:
            self._fall_back()
        return request

    def prepend_request(self, request: Request) -> None:
        """A running request was preempted: it goes first."""
        self._offered = None
        self._held[request] = None
        try:
            self._queue.prepend_request(request)
        except Exception:
            self._fall_back()

    def prepend_requests(self, requests: Iterable[Request]) -> None:
        """Skipped requests come back, the last skipped first."""
        self._offered = None
        requests = list(requests)
        self._held.update(dict.fromkeys(requests))
        try:
            self._queue.prepend_requests(requests)
        except Exception:
            self._fall_back()

    def remove_request(self, request: Request) -> None:
        """Forget a request. Raises ValueError when it is not here."""
        if request not in self._held:
            raise ValueError(f"request {request.request_id} is not waiting here")
        self.remove_requests([request])

    def remove_requests(self, requests: Iterable[Request]) -> None:
        """Forget requests; some may be elsewhere."""
        self._offered = None
        requests = list(requests)
        for request in requests:
            self._held.pop(request, None)
        try:
            self._queue.remove_requests(requests)
        except Exception:
            self._fall_back()

    def __bool__(self) -> bool:
        """Whether to look for one that can run."""
        try:
            return bool(self._held and self._queue)
        except Exception:
            self._fall_back()
        return bool(self._queue)

    def __len__(self) -> int:
        held = len(self._held)
        try:
            if len(self._queue) != held:
                raise DisagreementError
        except Exception:
            self._fall_back()
        return held

    def __iter__(self) -> Iterator[Request]:
        try:
            line = list(self._queue)
            if len(line) != len(self._held):
                raise DisagreementError
        except Exception:
            self._fall_back()
            line = list(self._queue)
        return iter(line)

    def _fall_back(self) -> None:
        """Called while an error is handled: vLLM's queue is given all that wait, and goes on.

        Its own errors are raised.
        """
        if self._queue is self._stock:
            raise
        LOGGER.exception(
            "the context scheduler failed and is off; the order is vLLM's own from now on"
        )
        self._queue, self._offered = self._stock, None
        for request in sorted(self._held, key=_arrival):
            self._stock.add_request(request)
        self._failed()


def _arrival(request: Request) -> tuple[bool, float]:
    """Preempted requests go first; by priority vLLM's queue sorts them itself, where it does."""
    return request.status is not RequestStatus.PREEMPTED, request.arrival_time
