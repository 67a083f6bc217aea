"""TLS over connections whose bytes come with their time: replies and times are those without it."""

import asyncio
import contextlib
import socket
import ssl
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import uvloop
from behaviours import DONE, REPLY, usage
from test_client_http import FRAMINGS, PLAIN, ask_at, assert_whole, hosting, says
from test_client_stamps import ASLEEP_S, HEAD, SOON_S, ask_and_count, chunk

from loadgen.client.tls_layer import TlsLayer

DATA = Path(__file__).parents[1] / "data" / "tls"


@pytest.fixture
def tls(monkeypatch: pytest.MonkeyPatch) -> ssl.SSLContext:
    """What a host named localhost needs; clients trust it."""
    monkeypatch.setenv("SSL_CERT_FILE", str(DATA / "localhost.pem"))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(DATA / "localhost.pem", DATA / "localhost.key")
    return context


@pytest.mark.parametrize("name", FRAMINGS)
async def test_a_reply_is_the_same_in_any_framing(name: str, tls: ssl.SSLContext) -> None:
    talk, connections = FRAMINGS[name]
    async with hosting(talk, tls=tls) as (host, port):
        for exchange in await ask_at(f"https://localhost:{port}", times=2):
            assert_whole(exchange)
    assert host.connections == connections


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_either_version_carries_prompts_and_replies_of_many_records(
    version: ssl.TLSVersion, tls: ssl.SSLContext
) -> None:
    tls.minimum_version = tls.maximum_version = version
    long = b": " + b"x" * 100_000 + b"\n\n"
    reply = HEAD + chunk(b"".join((REPLY[0], long, *REPLY[1:], usage(), DONE))) + b"0\r\n\r\n"
    async with hosting(says(reply), tls=tls) as (_, port):
        url = f"https://localhost:{port}"
        for exchange in await ask_at(url, times=2, prompt="long " * 200_000):
            assert_whole(exchange)


async def test_a_certificate_of_another_host_is_refused(tls: ssl.SSLContext) -> None:
    async with hosting(says(PLAIN), tls=tls) as (_, port):
        (exchange,) = await ask_at(f"https://127.0.0.1:{port}")
    assert exchange.outcome == "connect_error"
    assert "127.0.0.1" in exchange.error.partition("failed: ")[2]


async def test_a_stranger_s_certificate_is_refused(
    tls: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SSL_CERT_FILE")
    async with hosting(says(PLAIN), tls=tls) as (_, port):
        (exchange,) = await ask_at(f"https://localhost:{port}")
    assert exchange.outcome == "connect_error"
    assert "self-signed" in exchange.error


def test_on_the_loop_of_a_swarm(tls: ssl.SSLContext) -> None:
    uvloop.run(test_a_reply_is_the_same_in_any_framing("chunked", tls))


@contextmanager
def listening(talk: Callable[[socket.socket], None]) -> Iterator[int]:
    """The port of a host in a thread of its own, which talks with one client."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(20)

        def serve() -> None:
            connection, _ = listener.accept()
            with connection, contextlib.suppress(OSError):
                talk(connection)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            thread.join(20)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux stamps what arrives")
async def test_a_token_has_the_time_of_its_arrival_not_of_its_reading(tls: ssl.SSLContext) -> None:
    written_at = []

    def talk(plain: socket.socket) -> None:
        with tls.wrap_socket(plain, server_side=True) as connection:
            connection.recv(65_536)
            time.sleep(0.2)
            written_at.append(time.perf_counter())
            connection.sendall(HEAD + chunk(REPLY[0]))
            time.sleep(2 * ASLEEP_S)
            last = chunk(b"".join((REPLY[-1], usage(completion_tokens=2), DONE)))
            connection.sendall(last + b"0\r\n\r\n")

    with listening(talk) as port:
        exchange, counts = await ask_and_count(f"https://localhost:{port}", asleep_s=ASLEEP_S)
    assert (exchange.outcome, counts.clock) == ("ok", "kernel")
    assert (counts.tokens, counts.shared, counts.late) == (2, 0, 0), "read late, with its own time"
    assert 0 <= exchange.token_times[0] - written_at[0] < SOON_S
    assert exchange.token_times[-1] - exchange.token_times[0] > ASLEEP_S


async def test_a_record_that_was_changed_on_its_way_ends_the_reply(tls: ssl.SSLContext) -> None:
    def talk(plain: socket.socket) -> None:
        with tls.wrap_socket(plain, server_side=True) as connection:
            connection.recv(65_536)
            connection.sendall(HEAD + chunk(REPLY[0]))
            time.sleep(0.2)
            with socket.socket(fileno=connection.detach()) as bare:
                bare.sendall(b"\x17\x03\x03\x00\x20" + b"?" * 32)
                bare.recv(1)

    with listening(talk) as port:
        (exchange,) = await ask_at(f"https://localhost:{port}")
    assert exchange.outcome in ("truncated", "malformed")
    assert len(exchange.token_times) == 1


class Kept:
    """Keeps what a TLS layer writes and what it hands on."""

    def __init__(self) -> None:
        self.written = self.received = b""

    def connection_made(self, transport: object) -> None:
        return

    def connection_lost(self, error: Exception | None) -> None:
        return

    def receive(self, data: bytes, received_at: float) -> None:
        self.received += data

    def write(self, data: bytes) -> None:
        self.written += data


async def test_what_came_before_a_changed_record_counts_though_it_was_read_with_it(
    tls: ssl.SSLContext,
) -> None:
    kept, incoming, outgoing = Kept(), ssl.MemoryBIO(), ssl.MemoryBIO()
    host = tls.wrap_bio(incoming, outgoing, server_side=True)
    layer = TlsLayer(kept, ssl.create_default_context(), "localhost")
    layer.connection_made(kept)
    for _ in range(3):
        incoming.write(kept.written)
        kept.written = b""
        with contextlib.suppress(ssl.SSLWantReadError):
            host.do_handshake()
        layer.receive(outgoing.read(), 0.0)
    host.write(DONE)
    with pytest.raises(ssl.SSLError):
        layer.receive(outgoing.read() + b"\x17\x03\x03\x00\x20" + b"?" * 32, 1.0)
    assert kept.received == DONE


async def test_a_host_that_hangs_up_in_the_handshake_is_a_connect_error() -> None:
    with listening(lambda connection: connection.recv(100) and None) as port:
        (exchange,) = await ask_at(f"https://localhost:{port}")
    assert exchange.outcome == "connect_error"
    assert "TLS handshake" in exchange.error or "reset" in exchange.error


async def test_a_handshake_that_never_ends_has_the_request_s_time() -> None:
    done = threading.Event()
    with listening(lambda connection: done.wait(20) and None) as port:
        began = time.perf_counter()
        (exchange,) = await ask_at(f"https://localhost:{port}", timeout_s=0.3)
        done.set()
    assert exchange.outcome == "timeout"
    assert time.perf_counter() - began < 10


async def test_many_connections_at_once(tls: ssl.SSLContext) -> None:
    async with hosting(says(PLAIN), tls=tls) as (_, port):
        asked = (ask_at(f"https://localhost:{port}") for _ in range(50))
        for (exchange,) in await asyncio.gather(*asked):
            assert_whole(exchange)
