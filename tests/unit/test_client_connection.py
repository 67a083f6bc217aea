"""Connections: reuse, refusal, cancellation, time stamps and secrets."""

import asyncio
import errno
import math
import socket
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from behaviours import (
    DONE,
    REPLY,
    SECRET,
    BehaviourServer,
    behaviour_server,
    raw_server,
    unused_port,
    usage,
)

from loadgen.client.client import ReplySink, StreamingClient
from loadgen.client.exchange import Exchange, ListExchange
from loadgen.client.failures import ConnectFailed
from loadgen.client.settings import ClientSettings
from loadgen.client.transport import Head, Sink, connect_failure, describe_connect_error


@pytest.fixture
async def server() -> AsyncIterator[BehaviourServer]:
    async with behaviour_server() as running:
        yield running


async def ask_url(url: str, **settings: Any) -> Exchange:
    exchange = Exchange()
    options = {"url": url, "model": "demo", "timeout_s": 20.0, **settings}
    async with StreamingClient(ClientSettings(**options)) as client:
        await client.stream("hi", 3, exchange)
    return exchange


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not holds():  # noqa: ASYNC110 (what is awaited is plain data)
            await asyncio.sleep(0.005)


class ScriptedTransport:
    """A reply whose chunks arrive at the times the test says, or a failure."""

    def __init__(self, reply: list[tuple[float, bytes]] | Exception) -> None:
        self._reply = reply

    async def post(self, body: bytes, sink: Sink, *more: Any) -> None:
        if isinstance(self._reply, Exception):
            raise self._reply
        sink.begin(Head(200, "text/event-stream"))
        for received_at, chunk in self._reply:
            if sink.feed(chunk, received_at):
                return

    async def warm(self, connections: int) -> None:
        return


async def scripted(reply: list[tuple[float, bytes]] | Exception, **settings: Any) -> Exchange:
    exchange = Exchange()
    options = ClientSettings(url="http://h", model="m", **settings)
    async with StreamingClient(options, ScriptedTransport(reply)) as client:
        await client.stream("hi", 3, exchange)
    return exchange


async def test_tokens_carry_the_arrival_of_their_chunk() -> None:
    exchange = await scripted(
        [
            (10.0, b": hello\n\n" + REPLY[0][:30]),
            (10.5, REPLY[0][30:]),
            (11.0, REPLY[1] + REPLY[2]),
            (12.0, usage()),
            (13.0, DONE),
            (14.0, REPLY[1]),
        ]
    )
    assert exchange.outcome == "ok"
    assert list(exchange.token_times) == [10.5, 11.0, 11.0]
    assert exchange.end_at == 13.0
    assert exchange.gaps_ms == [500.0, 0.0]


async def test_a_reply_without_done_ends_with_its_usage() -> None:
    exchange = await scripted([(10.0, b"".join(REPLY)), (12.0, usage())])
    assert (exchange.outcome, exchange.end_at) == ("ok", 12.0)


class Reader(Exchange):
    """Wants each event, as who shows the text does."""

    def __init__(self) -> None:
        super().__init__()
        self.read: list[bytes] = []

    def take(self, payload: bytes, received_at: float) -> None:
        super().take(payload, received_at)
        self.read.append(payload)


async def test_who_reads_the_text_gets_every_event(server: BehaviourServer) -> None:
    exchange = Reader()
    async with StreamingClient(server.settings("one-packet")) as client:
        await client.stream("hi", 3, exchange)
    assert [payload + b"\n\n" for payload in exchange.read] == [
        part.removeprefix(b"data: ") for part in (*REPLY, usage())
    ]


async def test_one_connection_serves_requests_in_turn(server: BehaviourServer) -> None:
    for behaviour in ("normal", "one-packet", "500-openai", "404", "no-done"):
        settings = server.settings(behaviour)
        server.clients.clear()
        async with StreamingClient(settings) as client:
            for _ in range(4):
                await client.stream("hi", 3, Exchange())
        assert len(server.clients) == 1, behaviour


async def test_a_broken_connection_is_not_used_again(server: BehaviourServer) -> None:
    settings = server.settings("error-in-stream")
    async with StreamingClient(settings) as client:
        for _ in range(3):
            await client.stream("hi", 3, Exchange())
    assert len(server.clients) == 3


async def test_requests_overlap_without_limit(server: BehaviourServer) -> None:
    exchanges = [Exchange() for _ in range(120)]
    settings = server.settings("slow-first-token")
    async with StreamingClient(settings) as client:
        await asyncio.gather(*(client.stream("hi", 3, exchange) for exchange in exchanges))
    assert {exchange.outcome for exchange in exchanges} == {"ok"}
    assert len(server.clients) == 120


@pytest.mark.parametrize("behaviour", ["hang-before-headers", "hang-mid-stream", "endless"])
async def test_a_cancelled_request_tells_what_it_saw(
    server: BehaviourServer, behaviour: str
) -> None:
    exchange = Exchange()
    settings = server.settings(behaviour)
    async with StreamingClient(settings) as client:
        task = asyncio.create_task(client.stream("hi", 3, exchange))
        await until(lambda: bool(server.bodies))
        if behaviour != "hang-before-headers":
            await until(lambda: len(exchange.token_times) >= 2)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert exchange.outcome == "cancelled"
    assert exchange.end_at is not None
    assert (len(exchange.token_times) >= 2) == (behaviour != "hang-before-headers")
    if behaviour == "endless":
        await asyncio.wait_for(server.hung_up.wait(), 10)


async def test_a_complete_reply_survives_its_cancellation(server: BehaviourServer) -> None:
    exchange = Exchange()
    settings = server.settings("hang-after-usage")
    async with StreamingClient(settings) as client:
        task = asyncio.create_task(client.stream("hi", 3, exchange))
        await until(lambda: exchange.complete)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert exchange.outcome == "ok"


def test_any_part_of_a_reply_is_a_sign_of_life_and_only_output_is_a_token() -> None:
    exchange = Exchange()
    sink = ReplySink(exchange)
    assert sink.heard_at == -math.inf
    sink.begin(Head(200, "text/event-stream"))
    began_at = sink.heard_at
    for seconds, part in enumerate((b": ping\n\n", b"data", REPLY[0][4:], b": ping\n\n"), 1):
        sink.feed(part, began_at + seconds)
        assert sink.heard_at == began_at + seconds
    assert list(exchange.token_times) == [began_at + 3]


def test_a_comment_in_the_reply_to_a_list_is_a_sign_of_life() -> None:
    sink = ReplySink(ListExchange((Exchange(), Exchange())))
    sink.begin(Head(200, "text/event-stream"))
    later_at = sink.heard_at + 5
    sink.feed(b": ping\n\n", later_at)
    assert sink.heard_at == later_at


async def test_a_host_that_only_sends_comments_is_heard() -> None:
    came_at = time.perf_counter() + 5.0

    class Commenting(ScriptedTransport):
        async def post(self, body: bytes, sink: Sink, *more: Any) -> None:
            sink.begin(Head(200, "text/event-stream"))
            sink.feed(b": still working\n\n", came_at)
            await asyncio.sleep(60)

    settings = ClientSettings(url="http://h", model="m")
    async with StreamingClient(settings, Commenting([])) as client:
        assert (client.heard_at(math.inf), client.is_waiting) == (None, False)
        asking = asyncio.create_task(client.stream("hi", 3, Exchange()))
        await asyncio.sleep(0)
        assert (client.heard_at(math.inf), client.is_waiting) == (came_at, True)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        assert (client.heard_at(math.inf), client.is_waiting) == (came_at, False)


async def test_a_refused_connection_is_a_connect_error() -> None:
    exchange = await ask_url(f"http://127.0.0.1:{unused_port()}")
    assert (exchange.outcome, exchange.status) == ("connect_error", None)
    assert "refused the connection" in exchange.error


@pytest.mark.parametrize("number", [errno.EMFILE, errno.EADDRNOTAVAIL])
def test_a_limit_of_the_own_machine_is_not_told_of_the_host(number: int) -> None:
    said = describe_connect_error(OSError(number, "x"), "gpu-box:80")
    assert "left" in said
    assert "ulimit" in said or "machines" in said
    assert connect_failure(OSError(number, "x"), "gpu-box:80").is_own
    assert not connect_failure(OSError(errno.ECONNREFUSED, "x"), "gpu-box:80").is_own


def resolve_by(monkeypatch: pytest.MonkeyPatch, resolve: Any) -> None:
    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", resolve)


async def test_an_unknown_name_is_a_connect_error(monkeypatch: pytest.MonkeyPatch) -> None:
    async def unknown(*_: Any, **__: Any) -> Any:
        raise socket.gaierror(-2, "Name or service not known")

    resolve_by(monkeypatch, unknown)
    exchange = await ask_url("http://gpu-box:8000")
    assert exchange.outcome == "connect_error"
    assert exchange.error == "host name gpu-box is unknown"


async def test_a_connection_that_does_not_open_in_time_is_a_connect_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def never(*_: Any, **__: Any) -> Any:
        await asyncio.sleep(3600)

    resolve_by(monkeypatch, never)
    exchange = await ask_url("http://gpu-box:8000", connect_timeout_s=0.05)
    assert exchange.outcome == "connect_error"
    assert exchange.error == "gpu-box:8000 did not answer in time"


@pytest.mark.parametrize("limit", ["connect_timeout_s", "timeout_s"])
async def test_a_connection_that_opens_while_this_process_sleeps_is_used(
    server: BehaviourServer, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    async def look_up(*_: Any, **__: Any) -> Any:
        time.sleep(2.0)  # noqa: ASYNC251
        await asyncio.sleep(0.01)
        return [(0, 0, 0, "", ("127.0.0.1", 0))]

    resolve_by(monkeypatch, look_up)
    url = server.url("normal").replace("127.0.0.1", "gpu-box")
    exchange = await ask_url(url, **{limit: 1.0})
    assert (exchange.outcome, exchange.error) == ("ok", "")


async def test_a_request_may_run_out_of_time_before_it_is_connected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def never(*_: Any, **__: Any) -> Any:
        await asyncio.sleep(3600)

    resolve_by(monkeypatch, never)
    exchange = await ask_url("http://gpu-box:8000", timeout_s=0.05)
    assert (exchange.outcome, exchange.status) == ("timeout", None)


async def test_tls_towards_a_plain_server_is_a_connect_error() -> None:
    async with raw_server(b"HTTP/1.1 400 Bad Request\r\n\r\n") as port:
        exchange = await ask_url(f"https://127.0.0.1:{port}")
    assert exchange.outcome == "connect_error"
    assert exchange.error.startswith(f"TLS with 127.0.0.1:{port} failed")


@pytest.mark.parametrize(
    ("answer", "outcome"), [(b"SSH-2.0-OpenSSH_9\r\n", "malformed"), (b"", "connect_error")]
)
async def test_a_server_of_another_kind_is_no_host(answer: bytes, outcome: str) -> None:
    async with raw_server(answer) as port:
        exchange = await ask_url(f"http://127.0.0.1:{port}")
    assert (exchange.outcome, exchange.status) == (outcome, None)
    assert str(port) in exchange.error


async def test_a_key_a_host_echoes_is_not_repeated(server: BehaviourServer) -> None:
    headers = {"Authorization": f"Bearer {SECRET}"}
    exchange = await ask_url(server.url("401-echo"), headers=headers)
    assert exchange.error == "HTTP 401: bad key *** given"


@pytest.mark.parametrize("cut_at", range(280, 300))
async def test_no_cut_leaves_half_a_key(cut_at: int) -> None:
    failure = ConnectFailed("x" * cut_at + SECRET)
    exchange = await scripted(failure, headers={"X-Key": SECRET})
    assert "sk-test" not in exchange.error


async def test_a_fault_of_our_own_is_no_success_and_says_where() -> None:
    exchange = await scripted(ZeroDivisionError("oops"))
    assert exchange.outcome == "malformed"
    assert "ZeroDivisionError('oops') at test_client_connection.py:" in exchange.error


async def test_without_time_left_nothing_is_sent(server: BehaviourServer) -> None:
    """A retrieval may have used it up."""
    exchange = Exchange()
    async with StreamingClient(server.settings("normal")) as client:
        await client.stream("hi", 3, Exchange())
        await client.stream("hi", 3, exchange, None, 1e6)
    assert (exchange.outcome, exchange.sent_at) == ("timeout", None)
    assert len(server.bodies) == 1


async def test_a_prompt_that_is_no_unicode_is_not_sent() -> None:
    exchange = Exchange()
    settings = ClientSettings(url="http://h", model="m")
    async with StreamingClient(settings, ScriptedTransport([])) as client:
        await client.stream("\ud800", 3, exchange)
    assert (exchange.outcome, exchange.sent_at) == ("malformed", None)
