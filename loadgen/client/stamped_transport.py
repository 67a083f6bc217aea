"""A TCP connection whose bytes come with the time at which they reached this machine.

Linux stamps what arrives (SO_TIMESTAMPNS, socket(7); for TCP, the last segment that what one call
reads was part of). So TTFT and ITL are those of the network, however late a busy event loop gets to
read. `Arrivals` reads what arrives on many sockets at once, and hands it on later.
"""

import asyncio
import contextlib
import errno
import math
import os
import select
import socket
import struct
import sys
import time
from collections import deque
from typing import Any, Protocol, Self

from gevent.monkey import get_original

from loadgen.client.token_times import ReadLog

MAX_READ = 256
MAX_HANDED_ON = 64
"""In one turn of the loop: a burst is read long before all of it is parsed."""

CATCH_UP_S = 0.05
"""Of one thing that is due; replies that go on and on would else hold the loop."""

MAX_WAITING = 2048
"""What was read and not handed on; with more of it the kernel keeps what arrives."""

CLOCK_TRIES, CLOCKS_TOGETHER_S = 3, 20e-6
STAMPS = sys.platform == "linux"
"""Elsewhere the time of reading has to do."""
READ_BYTES = 16_384
NOTHING = memoryview(b"")
CLOCK_ERROR_S = 0.001
"""How exactly the kernel's clock is known here; what is further out is of a clock that was set."""
_SO_TIMESTAMPNS = 35
"""asm-generic/socket.h; Python has no name for it."""
_TIMESPEC = struct.Struct("@ll")
_STAMP_SPACE = socket.CMSG_SPACE(_TIMESPEC.size) if STAMPS else 0


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

    def __init__(self, log: ReadLog | None = None) -> None:
        self.log = log or ReadLog()
        # gevent, once it has patched a process, hides it: its hub could not wait for it.
        self._epoll: Any = get_original("select", "epoll")()
        self._ends: dict[int, Readable] = {}
        self._waiting: deque[tuple[Readable, bytes, float]] = deque()
        self._round_at, self._round_reads = time.perf_counter(), 0
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

    def look(self) -> None:
        """Read what has come, as the loop does by itself."""
        self._read()

    def catch_up(self) -> None:
        """Read and hand on what has come: what came in time must not be called late. It takes at
        most about `CATCH_UP_S`."""
        until = time.perf_counter() + CATCH_UP_S
        self._hand_on_some(len(self._waiting))
        while self._read_some():  # of each connection a part at a time
            self._hand_on_some(len(self._waiting))
            if time.perf_counter() > until:
                return

    def _read(self) -> None:
        self._read_some()
        if self._turn is None:
            self._hand_on_some(MAX_HANDED_ON)

    def _read_some(self) -> int:
        """How many sockets there were to read."""
        if len(self._waiting) > MAX_WAITING:
            return 0
        polled_at, unix_to_perf_s = _clocks()
        log = self.log
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
        log.counts.reads += len(ready)
        log.looked(polled_at, time.perf_counter(), self._read_up_to(polled_at, len(ready)))
        return len(ready)

    def _read_up_to(self, polled_at: float, reads: int) -> float:
        """What had arrived by then has been read; the kernel names sockets in turn."""
        is_all = reads < MAX_READ
        self._round_reads += reads
        if not is_all and self._round_reads < len(self._ends):
            return -math.inf
        done_at = polled_at if is_all else self._round_at
        self._round_at, self._round_reads = polled_at, 0
        return done_at

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


class Receiver(Protocol):
    """The protocol of such a connection."""

    def connection_made(self, transport: Any) -> None:
        """It is open."""

    def receive(self, data: bytes, received_at: float) -> None:
        """Bytes and their arrival in `time.perf_counter()` seconds."""

    def connection_lost(self, error: Exception | None) -> None:
        """Either side has closed it; called once."""


class StampedTransport(asyncio.Transport):
    """Sends at once, as far as the kernel takes it; keeps the rest until it takes more."""

    __slots__ = (
        "_arrivals",
        "_closing",
        "_ended",
        "_error",
        "_last_at",
        "_loop",
        "_receiver",
        "_socket",
        "_unsent",
    )

    def __init__(self, sock: socket.socket, receiver: Receiver, arrivals: Arrivals) -> None:
        super().__init__()
        self._loop = asyncio.get_running_loop()
        self._socket, self._receiver, self._arrivals = sock, receiver, arrivals
        self._unsent = NOTHING
        self._closing = self._ended = False
        self._error: OSError | None = None
        self._last_at = time.perf_counter()
        arrivals.add(sock.fileno(), self)
        receiver.connection_made(self)

    def is_closing(self) -> bool:
        """See asyncio.BaseTransport."""
        return self._closing or self._ended

    def get_write_buffer_size(self) -> int:
        """See asyncio.WriteTransport."""
        return len(self._unsent)

    def write(self, data: Any) -> None:
        """See asyncio.WriteTransport."""
        if self._unsent:
            self._unsent = memoryview(bytes(self._unsent) + data)
            return
        # What arrives from now on is no earlier than the question.
        self._last_at = max(self._last_at, time.perf_counter())
        self._unsent = memoryview(data)
        if not self._flush():
            self._arrivals.want_to_write(self._socket.fileno(), True)

    def abort(self) -> None:
        """See asyncio.WriteTransport."""
        if not self._closing:
            self._close()
            self._loop.call_soon(self._receiver.connection_lost, None)

    def read(self, events: int, polled_at: float, unix_to_perf_s: float) -> tuple[bytes, float]:
        """See Readable; what was waiting to be sent goes out as well."""
        if events & select.EPOLLOUT and self._flush():
            self._arrivals.want_to_write(self._socket.fileno(), False)
        try:
            data, stamps, _, _ = self._socket.recvmsg(READ_BYTES, _STAMP_SPACE)
        except BlockingIOError:
            raise
        except OSError as error:
            data, stamps, self._error = b"", [], self._error or error
        if not data:
            self._ended = True
            self._arrivals.remove(self._socket.fileno())
        if stamps:
            seconds, nanoseconds = _TIMESPEC.unpack(stamps[0][2])
            received_at = seconds + nanoseconds * 1e-9 + unix_to_perf_s
            if not self._last_at <= received_at <= polled_at:
                received_at = self._believable(received_at)
        else:
            received_at = self._unstamped() if data else time.perf_counter()
        if len(data) == READ_BYTES:
            self._arrivals.log.counts.full_reads += 1
        self._last_at = max(received_at, polled_at)
        return data, received_at

    def _believable(self, stamp: float) -> float:
        """Of one that is not between the last look and this one: it came after the kernel was asked
        now, or the clock was set since, and then nothing is known but the time of reading."""
        now = time.perf_counter()
        if self._last_at - CLOCK_ERROR_S < stamp < now:
            return max(stamp, self._last_at)
        return self._unstamped()

    def _unstamped(self) -> float:
        """The time of reading, which has to do."""
        self._arrivals.log.counts.unstamped_reads += 1
        return time.perf_counter()

    def hand_on(self, data: bytes, received_at: float) -> None:
        """See Readable."""
        if self._closing:
            return
        if not data:
            self._lose(self._error)
            return
        try:
            self._receiver.receive(data, received_at)
        except Exception as error:
            self._lose(error)

    def _lose(self, error: Exception | None) -> None:
        self._close()
        self._receiver.connection_lost(error)

    def _close(self) -> None:
        self._closing = True
        self._arrivals.remove(self._socket.fileno())
        self._socket.close()

    def _flush(self) -> bool:
        """Whether there is no more to be sent."""
        try:
            sent = self._socket.send(self._unsent)
        except BlockingIOError:
            return False
        except OSError as error:
            # What the host said before it hung up, if anything, is still to be read.
            self._error = error
            return True
        # An empty rest would keep the whole request.
        self._unsent = self._unsent[sent:] or NOTHING
        return not self._unsent


async def connect(address: str, port: int, receiver: Receiver, arrivals: Arrivals) -> None:
    """Open a connection to an IP address. Raises OSError."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    sock: socket.socket = get_original("socket", "socket")(family, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with contextlib.suppress(OSError):  # some sandboxes cannot
            sock.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
        await _connected(sock, address, port)
        StampedTransport(sock, receiver, arrivals)
    except BaseException:
        sock.close()
        raise


async def _connected(sock: socket.socket, address: str, port: int) -> None:
    """As `loop.sock_connect`, which asks uvloop's resolver threads even for an IP address."""
    with contextlib.suppress(BlockingIOError):
        sock.connect((address, port))
        return
    loop = asyncio.get_running_loop()
    answered = asyncio.Event()
    loop.add_writer(sock, answered.set)
    try:
        await answered.wait()
    finally:
        loop.remove_writer(sock)
    number = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    if number:
        raise OSError(number, os.strerror(number))
