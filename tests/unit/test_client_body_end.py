"""A body may go on behind its reply: nobody waits, and its connection is used once it ends."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from behaviours import DONE, REPLY, event, token, usage

from loadgen.client import client as client_module
from loadgen.client import wire, wire_connection
from loadgen.client.client import StreamingClient
from loadgen.client.exchange import Exchange
from loadgen.client.settings import ClientSettings

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
LAST = token("", "stop", usage={"prompt_tokens": 7, "completion_tokens": 3})
REPLIES = {
    "done": (*REPLY, usage(), DONE),
    "usage": (*REPLY, usage()),
    "usage of the last choice": (*REPLY, LAST),
}
END = b"0\r\n\r\n"


def chunk(part: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(part), part)


class LateHost:
    """Ends its bodies when it is told to, by `rest`."""

    def __init__(self, reply: tuple[bytes, ...], rest: bytes = END) -> None:
        self._reply = b"".join(map(chunk, reply))
        self._rest = rest
        self.end_bodies = asyncio.Event()
        self.connections = self.closed = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                length = head.partition(b"content-length: ")[2].partition(b"\r\n")[0]
                await reader.readexactly(int(length))
                await self.answer(writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            self.closed += 1
        finally:
            writer.close()

    async def answer(self, writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD + self._reply)
        await self.end_bodies.wait()
        writer.write(self._rest)


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not holds():  # noqa: ASYNC110 (what is awaited is plain data)
            await asyncio.sleep(0.001)


@asynccontextmanager
async def asking(host: LateHost) -> AsyncIterator[StreamingClient]:
    server = await asyncio.start_server(host.serve, "127.0.0.1", 0)
    url = "http://127.0.0.1:{1}".format(*server.sockets[0].getsockname())
    async with server, StreamingClient(ClientSettings(url=url, model="m")) as client:
        yield client
        host.end_bodies.set()


async def ask(client: StreamingClient, times: int = 1) -> None:
    for _ in range(times):
        exchange = Exchange()
        await client.stream("hi", 3, exchange)
        assert (exchange.outcome, exchange.output_tokens) == ("ok", 3)


@pytest.mark.parametrize("name", REPLIES)
async def test_the_next_request_starts_at_the_end_of_the_reply(name: str) -> None:
    host = LateHost(REPLIES[name])
    began_at = time.perf_counter()
    async with asking(host) as client:
        await ask(client, times=10)
        assert time.perf_counter() - began_at < 5  # a second each before
        assert host.connections == 10


async def test_a_connection_is_used_again_once_its_body_has_ended() -> None:
    host = LateHost(REPLIES["done"])
    async with asking(host) as client:
        await ask(client)
        host.end_bodies.set()
        await until(lambda: bool(idle(client)))
        await ask(client, times=3)
        assert host.connections == 1


async def test_a_host_whose_bodies_end_late_is_known_until_they_no_longer_do() -> None:
    host = LateHost(REPLIES["done"])
    async with asking(host) as client:
        await ask(client)
        assert transport(client)._ends_late
        host.end_bodies.set()
        await ask(client)
        while transport(client)._ends_late:
            await ask(client)


class SilentHost(LateHost):
    """Says nothing itself."""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self.end_bodies.wait()
        writer.close()


async def test_a_body_that_ends_before_its_reader_is_woken_frees_its_connection_once() -> None:
    async with asking(SilentHost(())) as client:
        await transport(client).warm(1)
        (kept,), exchange = idle(client), Exchange()
        transport(client)._ends_late = True
        asked = asyncio.ensure_future(client.stream("hi", 3, exchange))
        await until(lambda: not idle(client))
        for data in (HEAD + b"".join(map(chunk, REPLIES["done"])), END):
            kept.receive(data, time.perf_counter())
        await asked
        assert (exchange.outcome, idle(client)) == ("ok", [kept])


@pytest.mark.parametrize("rest", [END + HEAD, b"nonsense\r\n", chunk(b": x\n\n" * 20_000)])
async def test_what_is_no_end_of_a_body_costs_the_connection(rest: bytes) -> None:
    host = LateHost(REPLIES["done"], rest)
    async with asking(host) as client:
        await ask(client)
        host.end_bodies.set()
        await until(lambda: not transport(client)._draining)
        assert not idle(client)


async def test_bodies_without_end_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "MAX_DRAINING", 3)
    host = LateHost(REPLIES["done"])
    async with asking(host) as client:
        await ask(client, times=8)
        assert len(transport(client)._draining) <= 3
    monkeypatch.setattr(wire_connection, "LINGER_S", 0.02)
    host = LateHost(REPLIES["done"])
    async with asking(host) as client:
        await ask(client, times=2)
        await until(lambda: not transport(client)._draining)
        assert not idle(client)


class EndlessHost(LateHost):
    """Calls each of its events the last, and has eight."""

    async def answer(self, writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD)
        for at in range(8):
            told = {"prompt_tokens": 7, "completion_tokens": at + 1}
            writer.write(chunk(token("a", "stop", usage=told)))
            await asyncio.sleep(0.06)
        writer.write(END)


@pytest.mark.parametrize("late_body_ends", [False, True])
async def test_a_reply_that_goes_on_behind_its_end_is_read_whole(
    late_body_ends: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "LINGER_S", 0.15)
    async with asking(EndlessHost(())) as client:
        transport(client)._ends_late = late_body_ends
        for _ in range(3):
            exchange = Exchange()
            await client.stream("hi", 8, exchange)
            assert (exchange.outcome, exchange.output_tokens) == ("ok", 8)
            assert len(exchange.token_times) == 8


async def test_what_follows_done_is_no_part_of_the_reply() -> None:
    host = LateHost(REPLIES["done"], chunk(REPLY[0]) + chunk(event(error="late")) + END)
    async with asking(host) as client:
        exchange = Exchange()
        asked = asyncio.ensure_future(client.stream("hi", 3, exchange))
        await until(lambda: exchange.ended_well and exchange.end_at is not None)
        host.end_bodies.set()
        await asked
        assert (exchange.outcome, exchange.error, len(exchange.token_times)) == ("ok", "", 3)


async def test_what_fails_before_done_still_counts() -> None:
    host = LateHost((*REPLY, usage(), event(error={"message": "died"})))
    async with asking(host) as client:
        exchange = Exchange()
        await client.stream("hi", 3, exchange)
        assert exchange.outcome == "malformed"


def transport(client: StreamingClient) -> wire.WireTransport:
    assert isinstance(client._transport, wire.WireTransport)
    return client._transport


def idle(client: StreamingClient) -> list[wire_connection.WireConnection]:
    return transport(client)._idle
