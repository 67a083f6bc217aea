"""HTTP/1.1 as hosts write it, over sockets: the same reply however it is framed."""

import asyncio
import gzip
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvloop
from behaviours import DONE, REPLY, split, usage

from loadgen.client import wire
from loadgen.client.client import StreamingClient
from loadgen.client.exchange import Exchange
from loadgen.client.settings import ClientSettings
from loadgen.errors import UsageError

EVENTS = (*REPLY, usage(), DONE)
WHOLE = b"".join(EVENTS)
STREAM = b"Content-Type: text/event-stream\r\n"
CHUNKED = b"HTTP/1.1 200 OK\r\n" + STREAM + b"Transfer-Encoding: chunked\r\n"
Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Any]


def chunked(*parts: bytes, extension: bytes = b"", trailers: bytes = b"") -> bytes:
    lines = [b"%x%b\r\n%b\r\n" % (len(part), extension, part) for part in parts]
    return b"".join(lines) + b"0\r\n" + trailers + b"\r\n"


PLAIN = CHUNKED + b"\r\n" + chunked(*EVENTS)


async def question(reader: asyncio.StreamReader) -> tuple[str, bytes]:
    """The head and the body of the next request; raises IncompleteReadError at the end."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    length = int(head.lower().partition("content-length: ")[2].split("\r\n")[0])
    return head, await reader.readexactly(length)


class Host:
    """A TCP server that follows a script; one connection after another is counted."""

    def __init__(self, talk: Talk) -> None:
        self._talk = talk
        self.connections = 0
        self.errors: list[BaseException] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            await self._talk(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        except Exception as error:
            self.errors.append(error)
        finally:
            writer.close()


@asynccontextmanager
async def hosting(
    talk: Talk, address: str = "127.0.0.1", tls: ssl.SSLContext | None = None
) -> AsyncIterator[tuple[Host, int]]:
    host = Host(talk)
    server = await asyncio.start_server(host.serve, address, 0, ssl=tls)
    async with server:
        yield host, server.sockets[0].getsockname()[1]
    assert host.errors == []


def says(*pieces: bytes, hang_up: bool = False, pause_s: float = 0.0) -> Talk:
    """Answers every question with `pieces`, each written by itself."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await question(reader)
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(pause_s)
            if hang_up:
                return

    return talk


async def ask(talk: Talk, times: int = 1, **settings: Any) -> tuple[list[Exchange], Host]:
    async with hosting(talk) as (host, port):
        url = f"http://127.0.0.1:{port}"
        return await ask_at(url, times, **settings), host


async def ask_at(url: str, times: int = 1, prompt: str = "hi", **settings: Any) -> list[Exchange]:
    options = {"timeout_s": 10.0, **settings}
    exchanges = [Exchange() for _ in range(times)]
    async with StreamingClient(ClientSettings(url=url, model="demo", **options)) as client:
        for exchange in exchanges:
            await client.stream(prompt, 3, exchange)
    return exchanges


def assert_whole(exchange: Exchange) -> None:
    assert (exchange.outcome, exchange.error, exchange.status) == ("ok", "", 200)
    assert len(exchange.token_times) == 3
    assert (exchange.prompt_tokens, exchange.output_tokens) == (7, 3)


LENGTH = b"Content-Length: %d\r\n" % len(WHOLE)
FRAMINGS: dict[str, tuple[Talk, int]] = {
    # the answers, and how many connections two questions need
    "chunked": (says(PLAIN), 1),
    "one byte at a time": (says(*split(PLAIN, 1)), 1),
    "one chunk": (says(CHUNKED + b"\r\n" + chunked(WHOLE)), 1),
    "chunks of a byte": (says(CHUNKED + b"\r\n" + chunked(*split(WHOLE, 1))), 1),
    "chunk extensions": (says(CHUNKED + b"\r\n" + chunked(*EVENTS, extension=b" ;a=b")), 1),
    "trailers": (
        says(CHUNKED + b"\r\n" + chunked(*EVENTS, trailers=b"Content-Type: x\r\nX-Sum: 1\r\n")),
        1,
    ),
    "a length beside the chunks": (says(PLAIN.replace(STREAM, STREAM + LENGTH)), 1),
    "length": (says(b"HTTP/1.1 200 OK\r\n" + STREAM + LENGTH + b"\r\n", WHOLE), 1),
    "until close": (says(b"HTTP/1.1 200 OK\r\n" + STREAM + b"\r\n", WHOLE, hang_up=True), 2),
    "HTTP/1.0": (says(b"HTTP/1.0 200 OK\r\n" + STREAM + b"\r\n" + WHOLE, hang_up=True), 2),
    "connection: close": (says(CHUNKED + b"Connection: close\r\n\r\n" + chunked(*EVENTS)), 2),
    "continue first": (says(b"HTTP/1.1 100 Continue\r\n\r\n" + PLAIN), 1),
    "hints first": (says(b"HTTP/1.1 103 Early Hints\r\nContent-Type: x\r\n\r\n", PLAIN), 1),
    "headers in capitals": (says(PLAIN.replace(b"Content-Type", b"CONTENT-TYPE")), 1),
    "a header twice": (says(PLAIN.replace(STREAM, STREAM + b"Content-Type: text/html\r\n")), 1),
    "no reason": (says(PLAIN.replace(b"200 OK", b"200")), 1),
}


@pytest.mark.parametrize("name", FRAMINGS)
async def test_a_reply_is_the_same_in_any_framing(name: str) -> None:
    talk, connections = FRAMINGS[name]
    exchanges, host = await ask(talk, times=2)
    for exchange in exchanges:
        assert_whole(exchange)
    assert host.connections == connections


FAULTS: dict[str, tuple[Talk, str, str]] = {
    "no http": (says(b"\x16\x03\x01\x02\x00", hang_up=True), "malformed", "does not speak HTTP"),
    "an endless header": (
        says(b"HTTP/1.1 200 OK\r\nX-A: " + b"a" * 2**20, hang_up=True),
        "malformed",
        "does not speak HTTP",
    ),
    "half a header": (says(CHUNKED, hang_up=True), "connect_error", "closed the connection"),
    "half a chunk": (
        says(CHUNKED + b"\r\n", b"ff\r\ndata: {", hang_up=True),
        "truncated",
        "connection broke",
    ),
    "too short": (
        says(b"HTTP/1.1 200 OK\r\n" + STREAM + b"Content-Length: 999\r\n\r\n", hang_up=True),
        "truncated",
        "connection broke",
    ),
    "unfinished until close": (
        says(b"HTTP/1.1 200 OK\r\n" + STREAM + b"\r\n", *REPLY, hang_up=True),
        "truncated",
        "without usage or [DONE]",
    ),
    "half an error": (
        says(
            b"HTTP/1.1 500 No\r\nContent-Length: 999\r\n\r\nbus", b"y", hang_up=True, pause_s=0.02
        ),
        "http_error",
        "HTTP 500: bus",
    ),
    "another protocol": (
        says(b"HTTP/1.1 101 No\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n", hang_up=True),
        "http_error",
        "HTTP 101",
    ),
    "compressed": (
        says(CHUNKED + b"content-encoding: gzip\r\n\r\n" + chunked(gzip.compress(WHOLE))),
        "malformed",
        "compressed by gzip",
    ),
    "a refusal whose body never comes": (
        says(b"HTTP/1.1 503 Busy\r\nContent-Length: 5\r\n\r\n"),
        "rejected",
        "HTTP 503: no message",
    ),
    "a page whose body never comes": (
        says(b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 5\r\n\r\n"),
        "malformed",
        "not an event stream but text/html",
    ),
    "nothing to read": (says(b"HTTP/1.1 204 No\r\n\r\n", hang_up=True), "http_error", "HTTP 204"),
}


@pytest.mark.parametrize("name", FAULTS)
async def test_what_is_no_reply_is_told_apart(name: str) -> None:
    talk, outcome, said = FAULTS[name]
    (exchange,), host = await ask(talk)
    assert exchange.outcome == outcome
    assert said in exchange.error
    assert host.connections == 1


async def test_a_refusal_without_its_body_ends_with_the_time_of_the_request() -> None:
    talk, outcome, said = FAULTS["a refusal whose body never comes"]
    (exchange,), _ = await ask(talk, timeout_s=0.3)
    assert (exchange.outcome, exchange.error) == (outcome, said)
    assert exchange.sent_at is not None
    assert exchange.end_at is not None
    assert exchange.end_at - exchange.sent_at < 0.8


async def test_an_engine_whose_name_is_no_utf_8_has_one_that_can_be_sent() -> None:
    named = PLAIN.replace(STREAM, STREAM + b"X-Served-By: caf\xe9-1\r\n")
    (exchange,), _ = await ask(says(named))
    assert_whole(exchange)
    assert exchange.served_by == "caf\ufffd-1"
    assert exchange.served_by.encode().decode() == exchange.served_by


async def test_a_chunk_of_no_size_ends_the_reply() -> None:
    """At once, not when the time of the request is over."""
    (exchange,), _ = await ask(says(CHUNKED + b"\r\n" + chunked(*REPLY)[:-5] + b"zz\r\n"))
    assert (exchange.outcome, exchange.status) == ("truncated", 200)
    assert len(exchange.token_times) == 3


SECOND = b"HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n"


async def test_a_reply_nobody_asked_for_answers_nothing() -> None:
    """What follows a reply unasked must not become the reply to the next question."""
    exchanges, host = await ask(says(PLAIN + SECOND), times=3)
    for exchange in exchanges:
        assert_whole(exchange)
    assert host.connections == 3


@pytest.mark.parametrize("rest", [SECOND, b"garbage"])
async def test_what_follows_a_reply_ends_its_connection(rest: bytes) -> None:
    """Together with the reply or later. aiohttp may take the reply down with it."""
    for pieces in ([PLAIN + rest], [PLAIN, rest]):
        async with hosting(says(*pieces)) as (host, port):
            settings = ClientSettings(url=f"http://127.0.0.1:{port}", model="demo")
            async with StreamingClient(settings) as client:
                for _ in range(3):
                    exchange = Exchange()
                    await client.stream("hi", 3, exchange)
                    assert_whole(exchange)
                    await asyncio.sleep(0.05)
        assert host.connections == 3


async def test_a_kept_connection_that_was_closed_is_replaced() -> None:
    """The host hangs up on the second question of its first connection without a word."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await question(reader)
        writer.write(PLAIN)
        await question(reader)
        if host.connections > 1:
            writer.write(PLAIN)

    async with hosting(talk) as (host, port):
        exchanges = await ask_at(f"http://127.0.0.1:{port}", times=3)
    assert [exchange.outcome for exchange in exchanges] == ["ok", "ok", "ok"]
    assert [exchange.resends for exchange in exchanges] == [0, 1, 0]
    assert host.connections == 2


async def test_a_host_that_had_the_request_for_longer_is_not_asked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What an idle timeout of a proxy does to a long prefill, for example."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await question(reader)
        writer.write(PLAIN)
        await question(reader)
        await asyncio.sleep(0.05)

    monkeypatch.setattr(wire, "RACE_S", 0.02)
    async with hosting(talk) as (host, port):
        exchanges = await ask_at(f"http://127.0.0.1:{port}", times=2)
    assert [exchange.outcome for exchange in exchanges] == ["ok", "connect_error"]
    assert not any(exchange.resends for exchange in exchanges)
    assert host.connections == 1


async def test_a_host_that_hangs_up_on_new_connections_is_asked_once() -> None:
    (exchange,), host = await ask(says(hang_up=True))
    assert (exchange.outcome, host.connections) == ("connect_error", 1)
    assert exchange.error.endswith("closed the connection before it answered")


async def test_a_refusal_is_heard_while_the_prompt_is_still_sent() -> None:
    asked_again = asyncio.Event()

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 No\r\nContent-Length: 8\r\n\r\ntoo long")
        if host.connections == 2:
            asked_again.set()
        await asked_again.wait()

    prompt = "long " * 4_000_000
    async with hosting(refuse) as (host, port):
        exchanges = await ask_at(f"http://127.0.0.1:{port}", times=2, prompt=prompt)
    assert [exchange.error for exchange in exchanges] == ["HTTP 413: too long"] * 2
    assert host.connections == 2


async def test_a_long_prompt_arrives_whole() -> None:
    bodies = []

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.05)
        bodies.append((await question(reader))[1])
        writer.write(PLAIN)

    prompt = "".join(f"{number} " for number in range(500_000))
    exchanges, _ = await ask(talk, prompt=prompt)
    assert_whole(exchanges[0])
    assert f'"prompt":"{prompt}"'.encode() in bodies[0]


async def test_a_request_is_addressed_and_headed() -> None:
    heads = []

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append((await question(reader))[0])
        writer.write(PLAIN)

    async with hosting(talk) as (_, port):
        url = f"http://127.0.0.1:{port}/ä b/v1"
        await ask_at(url.replace(" ", "%20"), headers={"accept": "x", "X-Key": "y z"})
    lines = heads[0].split("\r\n")
    assert lines[0] == "POST /%C3%A4%20b/v1/completions HTTP/1.1"
    assert {f"Host: 127.0.0.1:{port}", "accept: x", "X-Key: y z"} <= set(lines)
    assert "Accept: text/event-stream" not in lines
    assert "Accept-Encoding: identity" in lines


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("X-A", "sk-1\r\nX-B: 1"),
        ("X-A", "sk-1\n"),
        ("X-A", "sk-1\0"),
        ("X A", "sk-1"),
        ("", "sk-1"),
    ],
)
def test_a_header_that_would_be_two_is_refused(name: str, value: str) -> None:
    with pytest.raises(UsageError) as caught:
        wire.WireTransport("http://h", {name: value}, 1.0)
    assert "sk-1" not in str(caught.value)


async def test_an_ipv6_address() -> None:
    try:
        async with hosting(says(PLAIN), address="::1") as (_, port):
            assert_whole((await ask_at(f"http://[::1]:{port}"))[0])
    except OSError:
        pytest.skip("no IPv6 here")


async def test_every_address_of_a_name_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    async def resolve(host: str, port: int, **_: Any) -> Any:
        stream = (socket.AF_INET, socket.SOCK_STREAM, 6, "")
        return [(*stream, ("127.0.0.9", port)), (*stream, ("127.0.0.1", port))]

    async with hosting(says(PLAIN)) as (_, port):
        connect = asyncio.get_running_loop().getaddrinfo

        async def look_up(host: str, *given: Any, **more: Any) -> Any:
            if host == "gpu-box":
                return await resolve(host, given[0])
            return await connect(host, *given, **more)

        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", look_up)
        assert_whole((await ask_at(f"http://gpu-box:{port}"))[0])


async def test_warm_connections_are_used_last_in_first_out() -> None:
    asked = set()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await question(reader)
            asked.add(writer)
            writer.write(PLAIN)

    async with hosting(talk) as (host, port):
        settings = ClientSettings(url=f"http://127.0.0.1:{port}", model="demo")
        async with StreamingClient(settings) as client:
            await client.warm(100, 10.0)
            for _ in range(5):
                await client.stream("hi", 3, Exchange())
            assert len(asked) == 1
            exchanges = [Exchange() for _ in range(100)]
            await asyncio.gather(*(client.stream("hi", 3, exchange) for exchange in exchanges))
            await client.warm(100, 10.0)
    assert (len(asked), host.connections) == (100, 100)
    assert {exchange.outcome for exchange in exchanges} == {"ok"}


async def test_warming_costs_no_more_than_its_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(*_: Any, **__: Any) -> Any:
        await asyncio.sleep(3600)

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", never)
    for url in ("http://127.0.0.1:9", "http://gpu-box:80"):
        settings = ClientSettings(url=url, model="demo")
        async with asyncio.timeout(5), StreamingClient(settings) as client:
            await client.warm(3, 0.05)


async def test_an_idle_connection_is_closed_before_the_host_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("loadgen.client.wire.KEEPALIVE_S", 0.05)
    closed = asyncio.Event()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await question(reader)
        writer.write(PLAIN)
        assert await reader.read() == b""
        closed.set()

    async with hosting(talk) as (_, port):
        settings = ClientSettings(url=f"http://127.0.0.1:{port}", model="demo")
        async with StreamingClient(settings) as client:
            await client.stream("hi", 3, Exchange())
            await asyncio.wait_for(closed.wait(), 10)


async def test_requests_under_way_end_with_their_client() -> None:
    async with hosting(says(CHUNKED + b"\r\n", DONE, pause_s=0.2)) as (_, port):
        exchange = Exchange()
        settings = ClientSettings(url=f"http://127.0.0.1:{port}", model="demo")
        async with StreamingClient(settings) as client:
            task = asyncio.create_task(client.stream("hi", 3, exchange))
            while exchange.status is None:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        await asyncio.wait_for(task, 10)
    assert exchange.outcome == "truncated"


@pytest.mark.parametrize(
    "test",
    [
        test_a_long_prompt_arrives_whole,
        test_a_refusal_is_heard_while_the_prompt_is_still_sent,
        test_a_kept_connection_that_was_closed_is_replaced,
        test_a_reply_nobody_asked_for_answers_nothing,
        test_an_ipv6_address,
    ],
)
def test_on_the_loop_of_a_swarm(test: Any) -> None:
    uvloop.run(test())
