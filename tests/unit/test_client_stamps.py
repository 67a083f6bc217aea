"""Times of arrival are the kernel's: they hold however late the event loop gets to read."""

import asyncio
import select
import socket
import struct
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest
import uvloop
from behaviours import DONE, REPLY, token, usage

from loadgen.client import stamped_transport
from loadgen.client.client import StreamingClient
from loadgen.client.exchange import Exchange
from loadgen.client.retrieval import LABEL_ROUTE, RetrievalClient
from loadgen.client.settings import ClientSettings
from loadgen.client.stamped_transport import Arrivals, StampedTransport, connect
from loadgen.client.token_times import TokenTimes

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux stamps what arrives")

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
HOUR_S = 3600.0
NO_OPTION = 9999
ASLEEP_S, SOON_S = 1.0, 0.5

Talk = Callable[[socket.socket], None]


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


WHOLE = HEAD + chunk(b"".join((*REPLY, usage(), DONE))) + b"0\r\n\r\n"
LONG = HEAD + chunk(b"".join((*[token("x" * 100)] * 200, REPLY[-1], usage(), DONE))) + b"0\r\n\r\n"


@contextmanager
def listening(talk: Talk) -> Iterator[str]:
    """The URL of a host in a thread of its own, which talks with one client."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(20)

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                talk(connection)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            thread.join(20)


async def ask(
    url: str, prompt: str = "hi", asleep_s: float = 0.0, timeout_s: float = 20
) -> Exchange:
    exchange, _ = await ask_and_count(url, prompt, asleep_s, timeout_s)
    return exchange


async def ask_and_count(
    url: str, prompt: str = "hi", asleep_s: float = 0.0, timeout_s: float = 20
) -> tuple[Exchange, TokenTimes]:
    """Ask, and meanwhile keep the event loop from doing anything for that long."""
    exchange, loop = Exchange(), asyncio.get_running_loop()
    near, far = socket.socketpair()

    def doze() -> None:
        near.recv(1)
        time.sleep(asleep_s)

    async with StreamingClient(ClientSettings(url=url, model="m", timeout_s=timeout_s)) as client:
        asking = asyncio.ensure_future(client.stream(prompt, 3, exchange))
        await asyncio.sleep(0.05)
        # After what is called for a socket loops look at their timers, and then at sockets again.
        loop.add_reader(near, doze)
        far.send(b".")
        await asking
        loop.remove_reader(near)
    near.close()
    far.close()
    return exchange, client.log.take()


def hang_up_hard(connection: socket.socket) -> None:
    """Close with a TCP reset."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


async def test_a_token_has_the_time_of_its_arrival_not_of_its_reading() -> None:
    written_at = []

    def talk(connection: socket.socket) -> None:
        connection.recv(65_536)
        time.sleep(0.2)
        written_at.append(time.perf_counter())
        connection.sendall(HEAD + chunk(REPLY[0]))
        time.sleep(2 * ASLEEP_S)
        connection.sendall(chunk(b"".join((*REPLY[1:], usage(), DONE))) + b"0\r\n\r\n")

    with listening(talk) as url:
        exchange = await ask(url, asleep_s=ASLEEP_S)
    assert exchange.outcome == "ok"
    assert 0 <= exchange.token_times[0] - written_at[0] < SOON_S
    assert exchange.token_times[-1] - exchange.token_times[0] > ASLEEP_S


async def test_tokens_that_waited_for_a_loop_that_was_blocked_are_counted() -> None:
    def talk(connection: socket.socket) -> None:
        connection.recv(65_536)
        time.sleep(0.2)  # by now the loop sleeps
        connection.sendall(HEAD + chunk(REPLY[0]))
        for _ in range(10):
            time.sleep(0.02)
            connection.sendall(chunk(REPLY[1]))
        time.sleep(2 * ASLEEP_S)
        connection.sendall(chunk(b"".join((usage(), DONE))) + b"0\r\n\r\n")

    with listening(talk) as url:
        exchange, counts = await ask_and_count(url, asleep_s=ASLEEP_S)
    tokens = len(exchange.token_times)
    assert (counts.tokens, counts.clock, counts.unstamped_reads) == (tokens, "kernel", 0)
    assert counts.shared == counts.late == tokens - 1
    assert ASLEEP_S * 900 < (counts.late_mean_ms or 0) < ASLEEP_S * 1000 + 500


@pytest.mark.parametrize("set_by_s", [-HOUR_S, HOUR_S])
async def test_a_wall_clock_that_is_set_takes_no_arrival_before_its_question(
    monkeypatch: pytest.MonkeyPatch, set_by_s: float
) -> None:
    unix_s, ahead_s = time.time, [0.0]
    monkeypatch.setattr(stamped_transport.time, "time", lambda: unix_s() + ahead_s[0])

    def talk(connection: socket.socket) -> None:
        connection.recv(65_536)
        connection.sendall(WHOLE)
        connection.recv(65_536)
        connection.sendall(HEAD + chunk(REPLY[0]))
        time.sleep(0.2)
        ahead_s[0] = set_by_s
        connection.sendall(chunk(b"".join((*REPLY[1:], usage(), DONE))) + b"0\r\n\r\n")

    first, second = Exchange(), Exchange()
    with listening(talk) as url:
        async with StreamingClient(ClientSettings(url=url, model="m", timeout_s=20)) as client:
            await client.stream("hi", 3, first)
            await asyncio.sleep(0.2)
            await client.stream("hi", 3, second)
    assert first.sent_at is not None
    assert second.sent_at is not None
    times = [first.sent_at, *first.token_times, second.sent_at, *second.token_times]
    assert times == sorted(times)
    assert second.token_times[-1] < time.perf_counter()
    assert second.token_times[-1] - second.token_times[0] > 0.1


class Kept:
    """Keeps the times at which something was received."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def connection_made(self, transport: StampedTransport) -> None:
        self.transport = transport

    def receive(self, data: bytes, received_at: float) -> None:
        self.times.append(received_at)

    def connection_lost(self, error: Exception | None) -> None:
        pass


@asynccontextmanager
async def connected() -> AsyncIterator[tuple[Kept, socket.socket]]:
    """A connection nobody reads but the test, and its other side."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        async with Arrivals() as reading:
            kept = Kept()
            await connect("127.0.0.1", listener.getsockname()[1], kept, reading)
            far, _ = listener.accept()
            with far:
                yield kept, far
            kept.transport.abort()


async def test_two_clocks_read_apart_let_no_token_come_before_the_last() -> None:
    async with connected() as (kept, far):
        for late_s in (0.0, 0.0002, 0.0008, 0.0, 0.5):
            polled_at = time.perf_counter()
            offset_s = polled_at - time.time() - late_s
            far.sendall(b"token")
            kept.transport.hand_on(*kept.transport.read(select.EPOLLIN, polled_at, offset_s))
    assert len(kept.times) == 5
    assert kept.times == sorted(kept.times)


async def test_what_is_known_to_have_ended_is_not_asked_again() -> None:
    async with connected() as (kept, far):
        assert not kept.transport.is_closing()
        far.close()
        now = time.perf_counter()
        assert kept.transport.read(select.EPOLLIN, now, now - time.time())[0] == b""
        assert kept.transport.is_closing()


async def test_where_nothing_is_stamped_the_time_is_that_of_reading(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stamped_transport, "_SO_TIMESTAMPNS", NO_OPTION)

    def talk(connection: socket.socket) -> None:
        connection.recv(65_536)
        time.sleep(0.3)
        connection.sendall(WHOLE)

    asked_at = time.perf_counter()
    with listening(talk) as url:
        exchange = await ask(url, asleep_s=ASLEEP_S)
    assert exchange.outcome == "ok"
    assert asked_at + ASLEEP_S < exchange.token_times[0] < time.perf_counter()


@pytest.mark.parametrize("reply", [WHOLE, LONG], ids=["short", "more than one read"])
def test_what_came_in_time_is_not_called_late_by_a_loop_that_was(reply: bytes) -> None:
    assert reply == WHOLE or len(reply) > 2 * stamped_transport.READ_BYTES

    def talk(connection: socket.socket) -> None:
        connection.recv(65_536)
        time.sleep(0.2)
        connection.sendall(reply)

    with listening(talk) as url:
        exchange = uvloop.run(ask(url, asleep_s=ASLEEP_S, timeout_s=ASLEEP_S - 0.2))
    assert exchange.outcome == "ok", exchange.error


async def test_a_label_that_came_in_time_is_not_called_late_either() -> None:
    label = b'{"doc_id": "raft", "score": 1, "timings": {}}'

    def talk(connection: socket.socket) -> None:
        connection.recv(65_536)
        time.sleep(0.2)
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(label), label))

    with listening(talk) as url:
        async with RetrievalClient(url, ASLEEP_S - 0.2, route=LABEL_ROUTE) as client:
            asking = asyncio.ensure_future(client.retrieve("Who?"))
            await asyncio.sleep(0.05)
            time.sleep(ASLEEP_S)  # noqa: ASYNC251
            assert (await asking).doc_id == "raft"


async def test_a_request_larger_than_the_kernel_takes_at_once_arrives_whole() -> None:
    got = []

    def talk(connection: socket.socket) -> None:
        time.sleep(0.2)
        text = bytearray()
        while b"END" not in text[-100:]:
            text += connection.recv(65_536)
        got.append(bytes(text))
        connection.sendall(WHOLE)

    prompt = "word " * 2_000_000 + "END"
    with listening(talk) as url:
        exchange = await ask(url, prompt)
    assert exchange.outcome == "ok"
    assert prompt.encode() in got[0]


async def test_a_reset_right_behind_a_token_is_seen_at_once() -> None:
    def talk(connection: socket.socket) -> None:
        connection.recv(65_536)
        connection.sendall(HEAD + chunk(token("one")))
        hang_up_hard(connection)

    for _ in range(20):
        with listening(talk) as url:
            began = time.perf_counter()
            exchange = await ask(url)
        assert exchange.outcome == "truncated"
        assert len(exchange.token_times) == 1
        assert time.perf_counter() - began < 10


class End:
    """One end of a socket pair that notes what is done with it, and in what order."""

    def __init__(self, name: str, noted: list[str]) -> None:
        self.name, self._noted = name, noted
        self.near, self.far = socket.socketpair()
        self.on_hand_on: Callable[[], object] = lambda: None

    def read(self, events: int, polled_at: float, unix_to_perf_s: float) -> tuple[bytes, float]:
        self._noted.append(f"read {self.name}")
        return self.near.recv(100), polled_at

    def hand_on(self, data: bytes, received_at: float) -> None:
        self._noted.append(f"hand on {self.name}")
        self.on_hand_on()
        self.on_hand_on = lambda: None


async def arriving(ends: list[End]) -> None:
    """Something comes at each of them."""
    async with Arrivals() as reading:
        for end in ends:
            end.far.send(b"some")
            reading.add(end.near.fileno(), end)
        await asyncio.sleep(0.2)
    for end in ends:
        end.near.close()
        end.far.close()


async def test_what_comes_while_a_burst_is_parsed_is_read_before_the_rest_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stamped_transport, "MAX_HANDED_ON", 1)
    noted: list[str] = []
    ends = [End(name, noted) for name in ("one", "two", "three")]
    ends[0].on_hand_on = lambda: ends[0].far.send(b"more")
    await arriving(ends)
    assert noted[:4] == ["read one", "read two", "read three", "hand on one"]
    assert noted.index("read one", 4) < noted.index("hand on three")
    assert noted.count("hand on one") == 2


async def test_with_too_much_to_be_handed_on_the_kernel_keeps_what_comes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stamped_transport, "MAX_HANDED_ON", 1)
    monkeypatch.setattr(stamped_transport, "MAX_WAITING", 0)
    noted: list[str] = []
    ends = [End(name, noted) for name in ("one", "two", "three")]
    ends[0].on_hand_on = lambda: ends[0].far.send(b"more")
    await arriving(ends)
    assert noted[3:6] == ["hand on one", "hand on two", "hand on three"]
    assert noted[6:] == ["read one", "hand on one"]


@pytest.mark.parametrize("where", ["read", "hand_on"])
async def test_an_end_that_fails_holds_up_no_other(
    monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    def fail(*_: object) -> Any:
        raise MemoryError("as much as it wants")

    told: list[BaseException | None] = []
    asyncio.get_running_loop().set_exception_handler(
        lambda loop, context: told.append(context.get("exception"))
    )
    noted: list[str] = []
    ends = [End(name, noted) for name in ("one", "two", "three")]
    monkeypatch.setattr(ends[0], where, fail)
    await arriving(ends)
    assert [line for line in noted if line.startswith("hand on")] == [
        "hand on two",
        "hand on three",
    ]
    assert [str(error) for error in told] == ["as much as it wants"]
