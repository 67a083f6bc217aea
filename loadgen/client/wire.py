"""The seam on the wire: HTTP/1.1 by one asyncio.Protocol for each connection."""

import asyncio
import contextlib
import math
import time
from collections.abc import Mapping
from typing import Self

from yarl import URL

from loadgen.client.addresses import Addresses
from loadgen.client.deadlines import Deadlines, time_limit
from loadgen.client.stamped_transport import STAMPS, Arrivals, connect
from loadgen.client.tls_layer import connect_by_tls
from loadgen.client.token_times import LOOK_S, ReadLog
from loadgen.client.transport import (
    KEEPALIVE_S,
    RACE_S,
    SETTLE_S,
    Sink,
    connect_failure,
    request_headers,
    tls_context,
)
from loadgen.client.wire_connection import Unanswered, WireConnection

MAX_OPENING = 64
"""Connections that `warm` opens at once."""

MAX_DRAINING = 256
"""Connections whose bodies go on behind their replies; more are dropped at once."""


class WireTransport:
    """Kept-alive connections, as many as there are requests at once; the last used goes first.

    A request that finds its kept connection closed within `RACE_S`, without a byte of an answer,
    is sent once more on a new one; its time runs on. That is the race every client of kept
    connections has with a host that closes idle ones, and says nothing of the host.
    """

    def __init__(
        self,
        url: str,
        headers: Mapping[str, str],
        connect_timeout_s: float,
        log: ReadLog | None = None,
    ) -> None:
        """`log` is told of what is read. Raises UsageError for a header that cannot be sent."""
        self._log = log
        self._url = URL(url)
        self._port = self._url.port or 0
        self._host = f"{self._url.host_subcomponent}:{self._port}"
        self._connect_timeout_s = connect_timeout_s
        fields = request_headers(self._url.host_port_subcomponent or "", headers)
        lines = [f"POST {self._url.raw_path_qs} HTTP/1.1"]
        lines += [f"{name}: {value}" for name, value in fields.items()]
        self._head = ("\r\n".join(lines) + "\r\nContent-Length: ").encode("latin-1")
        self._tls = tls_context() if self._url.scheme == "https" else None
        self._idle: list[WireConnection] = []
        self._draining: set[WireConnection] = set()
        self._ends_late = False
        self._sweeper: asyncio.TimerHandle | None = None
        self._look_timer: asyncio.TimerHandle | None = None
        self._deadlines: Deadlines[WireConnection] | None = None
        self._arrivals: Arrivals | None = None
        self._stack = contextlib.AsyncExitStack()

    async def __aenter__(self) -> Self:
        if STAMPS:
            self._arrivals = await self._stack.enter_async_context(Arrivals(self._log))
            self._deadlines = Deadlines(self._arrivals.catch_up)
        else:
            self._deadlines = Deadlines()
        self._addresses = Addresses(self._url.raw_host or "", self._port)
        if self._log is not None:
            self._look(self._log)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._deadlines is not None:
            for connection in (*self._deadlines.close(), *self._idle):
                connection.drop()
            self._deadlines = None
        if self._sweeper is not None:
            self._sweeper.cancel()
        if self._look_timer is not None:
            self._look_timer.cancel()
        self._addresses.close()
        await self._stack.aclose()
        await asyncio.sleep(0)  # sockets are closed in the loop's next turn

    async def post(
        self, body: bytes, sink: Sink, timeout_s: float = math.inf, own_headers: bytes = b""
    ) -> None:
        """See Transport."""
        request = b"%b%d\r\n%b\r\n%b" % (self._head, len(body), own_headers, body)
        await self.send(request, sink, timeout_s)

    async def send(self, request: bytes, sink: Sink, timeout_s: float = math.inf) -> None:
        """As `post`, with a request that has its head."""
        if self._deadlines is None:
            raise RuntimeError("WireTransport is not open: use `async with`")
        now = time.perf_counter()
        kept = self._take(now)
        try:
            connection = kept or await self._open(now + timeout_s)
            await self._converse(connection, request, sink, _still_due(now, timeout_s))
        except Unanswered:
            if kept is None or time.perf_counter() - now > RACE_S:
                raise
            connection = await self._open(now + timeout_s)
            sink.resend()
            await self._converse(connection, request, sink, _still_due(now, timeout_s))

    async def warm(self, connections: int) -> None:
        """See Transport."""
        wanted = iter(range(connections - len(self._idle)))

        async def open_some() -> None:
            for _ in wanted:
                self._keep(await self._open(math.inf))

        openers = (open_some() for _ in range(MAX_OPENING))
        await asyncio.gather(*openers, return_exceptions=True)

    def _look(self, log: ReadLog) -> None:
        """So that it is known since when bytes may have lain there unread."""
        if self._arrivals is not None:
            self._arrivals.look()
        else:  # sockets are read behind the timers
            now = time.perf_counter()
            log.looked(now, now + LOOK_S, now)
        self._look_timer = asyncio.get_running_loop().call_later(LOOK_S, self._look, log)

    async def _converse(
        self, connection: WireConnection, request: bytes, sink: Sink, due_at: float
    ) -> None:
        settle_s = 0.0 if self._ends_late else SETTLE_S
        try:
            await connection.ask(request, sink, due_at, settle_s)
        finally:
            if connection.usable:
                self._ends_late = False
                self._keep(connection)
            elif connection.draining:
                self._ends_late = True
                self._draining.add(connection)
                if len(self._draining) > MAX_DRAINING:
                    connection.drop()

    def _drained(self, connection: WireConnection) -> None:
        """A body has ended behind its reply, or its connection was dropped."""
        self._draining.discard(connection)
        if connection.usable:
            self._ends_late = connection.over_for_s > SETTLE_S
            self._keep(connection)

    def _take(self, now: float) -> WireConnection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.usable and connection.idle_since > now - KEEPALIVE_S:
                return connection
            connection.drop()
        return None

    def _keep(self, connection: WireConnection) -> None:
        connection.idle_since = time.perf_counter()
        self._idle.append(connection)
        if self._sweeper is None:
            self._sweep_after(KEEPALIVE_S)

    def _sweep(self) -> None:
        """Close what has been idle for too long, or was closed by the host."""
        self._sweeper, idle, self._idle = None, self._idle, []
        expired_at = time.perf_counter() - KEEPALIVE_S
        for connection in idle:
            if connection.usable and connection.idle_since > expired_at:
                self._idle.append(connection)
            else:
                connection.drop()
        if self._idle:
            self._sweep_after(self._idle[0].idle_since - expired_at)

    def _sweep_after(self, seconds: float) -> None:
        self._sweeper = asyncio.get_running_loop().call_later(seconds, self._sweep)

    async def _open(self, due_at: float) -> WireConnection:
        """A new connection. Raises ConnectFailed, or TimeoutError where the request's time ends."""
        left_s = due_at - time.perf_counter()
        limit_s = min(self._connect_timeout_s, left_s)
        try:
            async with time_limit(limit_s):
                return await self._connect(limit_s)
        except OSError as error:
            # One that the system reports, and not a timer of ours, has a number.
            if isinstance(error, TimeoutError) and error.errno is None and left_s == limit_s:
                raise
            raise connect_failure(error, self._host) from error

    async def _connect(self, limit_s: float) -> WireConnection:
        """By the first address that answers; each has its share of the time."""
        addresses = await self._addresses.find()
        for last, address in enumerate(addresses, 1 - len(addresses)):
            try:
                async with time_limit(limit_s / len(addresses)):
                    connection = await self._connect_to(address)
            except OSError:
                if not last:
                    raise
            else:
                self._addresses.prefer(address)
                return connection
        raise OSError("the host name has no address")

    async def _connect_to(self, address: str) -> WireConnection:
        connection = self._new_connection()
        if self._arrivals is not None:
            if self._tls is None:
                await connect(address, self._port, connection, self._arrivals)
            else:
                name = self._url.raw_host or ""
                where = (address, self._port, connection, self._arrivals)
                await connect_by_tls(*where, self._tls, name)
            return connection
        await asyncio.get_running_loop().create_connection(
            lambda: connection,
            address,
            self._port,
            ssl=self._tls,
            server_hostname=self._url.raw_host if self._tls else None,
        )
        return connection

    def _new_connection(self) -> WireConnection:
        if self._deadlines is None:
            raise RuntimeError("WireTransport is not open: use `async with`")
        return WireConnection(self._host, self._deadlines, self._drained)


def _still_due(began_at: float, timeout_s: float) -> float:
    """When a request that is now sent has to be over. It had no time yet where this process has
    slept for all of it while a connection was opened."""
    now = time.perf_counter()
    return (began_at if now < began_at + timeout_s else now) + timeout_s
