"""Reads what arrives on many sockets at once, and hands it on later."""

import asyncio
import errno
import select
import time
from collections import deque
from typing import Any, Protocol, Self

from gevent.monkey import get_original

MAX_READ = 256
MAX_HANDED_ON = 64
"""In one turn of the loop: a burst is read long before all of it is parsed."""

MAX_WAITING = 2048
"""What was read and not handed on; with more of it the kernel keeps what arrives."""

CLOCK_TRIES, CLOCKS_TOGETHER_S = 3, 20e-6


class Readable(Protocol):
    """One end of a connection."""

    def read(self, events: int, polled_at: float, unix_to_perf_s: float) -> tuple[bytes, float]:
        """What has arrived and when, in `time.perf_counter()` seconds; no bytes at its end.

        `events` are those of select.EPOLL*, `polled_at` is when the kernel was asked for them,
        and `unix_to_perf_s` is what then lay between the two clocks. Raises BlockingIOError.
        """

    def hand_on(self, data: bytes, received_at: float) -> None:
        """The same again, when it is its turn."""


class Arrivals:
    """An epoll of our own inside the event loop's.

    Two tokens of a stream that wait unread become one piece, with one time for both: so reading
    goes before parsing. The loop's own watching of sockets will not do, as uvloop ends it at the
    first error: what came before that is read once and no more.
    """

    def __init__(self) -> None:
        # gevent, once it has patched a process, hides it: its hub could not wait for it.
        self._epoll: Any = get_original("select", "epoll")()
        self._ends: dict[int, Readable] = {}
        self._waiting: deque[tuple[Readable, bytes, float]] = deque()
        self._turn: asyncio.Handle | None = None

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._epoll.fileno(), self._read)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._loop.remove_reader(self._epoll.fileno())
        self._epoll.close()
        if self._turn is not None:
            self._turn.cancel()

    def add(self, descriptor: int, end: Readable) -> None:
        """Have it read while there is a byte, or the other side's end, or an error.

        Raises OSError, also when this is closed.
        """
        if self._epoll.closed:
            raise OSError(errno.ECANCELED, "the client was closed meanwhile")
        self._epoll.register(descriptor, select.EPOLLIN)
        self._ends[descriptor] = end

    def want_to_write(self, descriptor: int, wanted: bool) -> None:
        """Whether to call `read` as well while the socket takes bytes."""
        also = select.EPOLLOUT if wanted else 0
        if descriptor in self._ends:
            self._epoll.modify(descriptor, select.EPOLLIN | also)

    def remove(self, descriptor: int) -> None:
        """Before the socket is closed."""
        if self._ends.pop(descriptor, None) is not None and not self._epoll.closed:
            self._epoll.unregister(descriptor)

    def catch_up(self) -> None:
        """Read and hand on all that has come: what came in time must not be called late."""
        while self._read_some() == MAX_READ:
            pass
        self._hand_on_some(len(self._waiting))

    def _read(self) -> None:
        self._read_some()
        if self._turn is None:
            self._hand_on_some(MAX_HANDED_ON)

    def _read_some(self) -> int:
        """How many sockets there were to read."""
        if len(self._waiting) > MAX_WAITING:
            return 0
        polled_at, unix_to_perf_s = _clocks()
        wait = self._waiting.append
        ready = self._epoll.poll(0, MAX_READ)
        for descriptor, events in ready:
            end = self._ends[descriptor]
            try:
                wait((end, *end.read(events, polled_at, unix_to_perf_s)))
            except BlockingIOError:
                continue
            except Exception as error:  # it would be ready, and fail, in every turn to come
                self.remove(descriptor)
                told = {"message": "a connection cannot be read", "exception": error}
                self._loop.call_exception_handler(told)
        return len(ready)

    def _hand_on(self) -> None:
        self._turn = None
        self._hand_on_some(MAX_HANDED_ON)

    def _hand_on_some(self, most: int) -> None:
        waiting = self._waiting
        try:
            for _ in range(min(len(waiting), most)):
                end, data, received_at = waiting.popleft()
                end.hand_on(data, received_at)
        finally:  # also when one of them fails: no byte may come to wake the others
            if waiting and self._turn is None:
                self._turn = self._loop.call_soon(self._hand_on)


def _clocks() -> tuple[float, float]:
    """`time.perf_counter()` and what lies between it and `time.time()`, in seconds."""
    for _ in range(CLOCK_TRIES):
        perf_s, unix_s = time.perf_counter(), time.time()
        if time.perf_counter() - perf_s < CLOCKS_TOGETHER_S:
            break  # else another thread had its turn between the two
    return perf_s, perf_s - unix_s
