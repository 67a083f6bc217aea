"""A TCP connection whose bytes come with the time at which they reached this machine.

Linux stamps what arrives (SO_TIMESTAMPNS, socket(7); for TCP, the last segment that what one call
reads was part of). So TTFT and ITL are those of the network, however late a busy event loop gets to
read.
"""

import asyncio
import contextlib
import os
import select
import socket
import struct
import sys
import time
from typing import Any, Protocol

from gevent.monkey import get_original

from loadgen.client.arrivals import Arrivals

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
            received_at = time.perf_counter()
        self._last_at = max(received_at, polled_at)
        return data, received_at

    def _believable(self, stamp: float) -> float:
        """Of one that is not between the last look and this one: it came after the kernel was asked
        now, or the clock was set since, and then nothing is known but the time of reading."""
        now = time.perf_counter()
        if self._last_at - CLOCK_ERROR_S < stamp < now:
            return max(stamp, self._last_at)
        return now

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
