"""A scarce link between clients and a store: a proxy of TCP with a rate, a latency and a queue for
each client.

Each direction is a link of its own with the same rate. A client is a connection; with several
listening ports, all connections to one port are a client.
"""

import asyncio
import random
import time
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from kv_tiers.link.rate import RateSchedule, TokenBucket
from kv_tiers.link.report import ClientFigures, LinkReport
from kv_tiers.link.schedulers.scheduler import LinkScheduler, WaitingBytes

PIECE_BYTES = 16_384
MOST_WAITING_BYTES = 1 << 20
"""Of a connection in one direction: beyond it, the sender's own buffers fill."""
HOST = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class LinkSettings:
    """`latency_ms` goes on top of the transmission, and up to `jitter_ms` more, evenly; order is
    kept. Raises ValueError for what cannot be."""

    schedule: RateSchedule
    scheduler: Callable[[], LinkScheduler]
    latency_ms: float = 0.0
    jitter_ms: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("latency_ms", "jitter_ms"):
            if not 0 <= getattr(self, name) < 3_600_000:
                raise ValueError(f"{name} {getattr(self, name):g} is less than 0 or over an hour")


@dataclass(frozen=True, slots=True)
class QueuedPiece:
    """Bytes that wait for the link, and whoever brings them to their end."""

    content: bytes
    arrival: int
    deliver: Callable[[bytes, float], None]
    """Called with the time at which they are through."""


@dataclass(slots=True)
class PieceQueue:
    """Of one client in one direction."""

    pieces: deque[QueuedPiece] = field(default_factory=deque)
    bytes: int = 0

    @property
    def waiting(self) -> WaitingBytes:
        head = self.pieces[0]
        return WaitingBytes(len(head.content), self.bytes, len(self.pieces), head.arrival)


class LinkDirection:
    """The sender of one direction: what waits is sent piece by piece, whoever the scheduler
    names."""

    def __init__(self, settings: LinkSettings, clock: Callable[[], float]) -> None:
        self.sent_bytes = 0
        self.first_s: float | None = None
        self.last_s = 0.0
        self._scheduler = settings.scheduler()
        self._bucket = TokenBucket(settings.schedule)
        self._clock = clock
        self._queues: dict[str, PieceQueue] = {}
        self._arrivals = 0
        self._something = asyncio.Event()

    def add(self, client: str, content: bytes, deliver: Callable[[bytes, float], None]) -> None:
        """Have it sent when its turn has come."""
        if self.first_s is None:
            self.first_s = self._clock()
        self._arrivals += 1
        queue = self._queues.setdefault(client, PieceQueue())
        queue.pieces.append(QueuedPiece(content, self._arrivals, deliver))
        queue.bytes += len(content)
        self._something.set()

    async def serve(self) -> None:
        """Until it is cancelled."""
        while True:
            await self._something.wait()
            piece = self._next()
            through_s = self._bucket.send(self._clock(), len(piece.content))
            await _sleep_until(through_s, self._clock)
            self.sent_bytes += len(piece.content)
            self.last_s = through_s
            piece.deliver(piece.content, through_s)

    def _next(self) -> QueuedPiece:
        client = self._scheduler.choose(
            {client: queue.waiting for client, queue in self._queues.items()}
        )
        queue = self._queues[client]
        piece = queue.pieces.popleft()
        queue.bytes -= len(piece.content)
        if not queue.pieces:
            del self._queues[client]
        if not self._queues:
            self._something.clear()
        return piece


class LinkProxy:
    """Listens on `ports` of the loopback and hands on to `host` and `port`; `async with` opens and
    ends it. Raises OSError where it cannot listen."""

    def __init__(self, settings: LinkSettings, ports: Sequence[int], host: str, port: int) -> None:
        self.ports: list[int] = []
        """Those it listens on, once it is open."""
        self._settings, self._wanted = settings, tuple(ports)
        self._to = host, port
        self._clients: dict[str, ClientFigures] = {}
        self._random = random.Random(settings.seed)
        self._tasks: set[asyncio.Task[None]] = set()
        self._servers: list[asyncio.Server] = []
        self._begun_s = 0.0

    async def __aenter__(self) -> "LinkProxy":
        self._begun_s = time.monotonic()
        self._up = LinkDirection(self._settings, self.clock)
        self._down = LinkDirection(self._settings, self.clock)
        for direction in (self._up, self._down):
            self._begin(direction.serve())
        try:
            for port in self._wanted:
                server = await asyncio.start_server(self._accept, HOST, port)
                self._servers.append(server)
                self.ports.append(server.sockets[0].getsockname()[1])
        except OSError:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        for server in self._servers:
            server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def clock(self) -> float:
        """Seconds since it was opened."""
        return time.monotonic() - self._begun_s

    def report(self) -> LinkReport:
        """Of all so far."""
        shares = {}
        for name, direction in (("up", self._up), ("down", self._down)):
            first_s = direction.first_s
            possible = (
                self._settings.schedule.bytes_between(first_s, max(direction.last_s, first_s))
                if first_s is not None
                else 0.0
            )
            shares[name] = min(1.0, direction.sent_bytes / possible) if possible else 0.0
        return LinkReport(tuple(self._clients.values()), shares["up"], shares["down"])

    def _begin(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await self._carry(reader, writer)
        except (OSError, asyncio.CancelledError):
            pass  # either end has gone, or we end
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        figures = self._figures(writer)
        to_reader, to_writer = await asyncio.open_connection(*self._to)
        try:
            up = Carrier(self, self._up, figures, is_up=True)
            down = Carrier(self, self._down, figures, is_up=False)
            async with asyncio.TaskGroup() as both:
                both.create_task(up.carry(reader, to_writer))
                both.create_task(down.carry(to_reader, writer))
        except* OSError:
            pass
        finally:
            to_writer.close()

    def _figures(self, writer: asyncio.StreamWriter) -> ClientFigures:
        own, peer = (writer.get_extra_info(name)[1] for name in ("sockname", "peername"))
        name = f"port {own}" if len(self._wanted) > 1 else f"from {peer}"
        return self._clients.setdefault(name, ClientFigures(name))

    def delay_s(self) -> float:
        """Of one piece, beyond its transmission."""
        settings = self._settings
        return (settings.latency_ms + self._random.uniform(0, settings.jitter_ms)) / 1000


class Carrier:
    """One direction of one connection."""

    def __init__(
        self, proxy: LinkProxy, direction: LinkDirection, figures: ClientFigures, *, is_up: bool
    ) -> None:
        self._proxy, self._direction, self._figures = proxy, direction, figures
        self._is_up, self._is_over = is_up, False
        self._waiting_bytes = 0
        self._room, self._taken, self._arrived = (asyncio.Event() for _ in range(3))
        self._room.set()
        self._taken.set()
        self._due: deque[tuple[float, bytes]] = deque()

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Until the end of what is read has arrived."""
        deliver = asyncio.create_task(self._deliver(writer))
        try:
            while not deliver.done() and (content := await reader.read(PIECE_BYTES)):
                self._queue(content)
                await self._room.wait()
                await self._taken.wait()
            self._queue(b"")
            await deliver
        finally:
            deliver.cancel()
            self._is_over = True
            left_bytes = self._waiting_bytes + sum(len(content) for _, content in self._due)
            self._figures.gone(self._proxy.clock(), left_bytes)

    def _queue(self, content: bytes) -> None:
        """An empty piece is the end: it comes after all others."""
        if content:
            self._figures.arrived(self._proxy.clock(), len(content), self._is_up)
        self._waiting_bytes += len(content)
        if self._waiting_bytes >= MOST_WAITING_BYTES:
            self._room.clear()
        self._direction.add(self._figures.name, content, self._through)

    def _through(self, content: bytes, at_s: float) -> None:
        if self._is_over:
            return
        due_s = at_s + self._proxy.delay_s()
        if self._due:
            due_s = max(due_s, self._due[-1][0])
        self._due.append((due_s, content))
        self._arrived.set()
        self._waiting_bytes -= len(content)
        if self._waiting_bytes < MOST_WAITING_BYTES:
            self._room.set()

    async def _deliver(self, writer: asyncio.StreamWriter) -> None:
        while True:
            await self._arrived.wait()
            due_s, content = self._due[0]
            await _sleep_until(due_s, self._proxy.clock)
            self._due.popleft()
            if not self._due:
                self._arrived.clear()
            if not content:
                with suppress(OSError):
                    writer.write_eof()
                return
            writer.write(content)
            self._figures.delivered(self._proxy.clock(), len(content), self._is_up)
            self._taken.clear()  # where the receiver reads, it is set again before anybody looks
            try:
                await writer.drain()
            finally:
                self._taken.set()


async def _sleep_until(at_s: float, clock: Callable[[], float]) -> None:
    rest_s = at_s - clock()
    if rest_s > 0:
        await asyncio.sleep(rest_s)
