"""One node of the store: garbage for an answer, calls that wait, calls that are cancelled."""

import asyncio
import signal
from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest

from kv_tiers.store import NodeFailure, StoreNode, valkey_server
from kv_tiers.store.nodes import JOURNAL_START, CircuitBreaker

DEADLINE_S = 0.5
CALLS: dict[str, Callable[[StoreNode], Awaitable[object]]] = {
    "get": lambda node: node.get(b"a"),
    "put": lambda node: node.put(b"a", b"b"),
    "exists": lambda node: node.exists([b"a"]),
    "names": lambda node: anext(node.names()),
    "behind": lambda node: node.behind(b"j", JOURNAL_START),
}


async def test_a_node_that_speaks_something_else_fails() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 no\r\n\r\n")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        node = StoreNode(f"127.0.0.1:{port}", deadline_s=DEADLINE_S)
        with pytest.raises(NodeFailure):
            await node.get(b"a")
        await node.aclose()


@pytest.mark.parametrize(
    ("call", "said"),
    [
        *((call, said) for call in CALLS for said in (b":x\r\n", b"$-5\r\n", b"x" * 200_000)),
        *((call, b"*1\r\n" * 3000 + b":1\r\n") for call in CALLS),
        *((call, b"*1\r\n:1\r\n") for call in ("names", "behind")),
        *((call, b"*2\r\n:1\r\n:1\r\n") for call in ("names", "behind")),
        *(("behind", said) for said in (b"*1\r\n*-1\r\n", b"*1\r\n*1\r\n:1\r\n")),
    ],
)
async def test_a_node_that_speaks_garbage_fails(call: str, said: bytes) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while asked := await reader.read(4096):
                greeted = asked.count(b"\r\nCLIENT\r\n")
                writer.write(b"+OK\r\n" * greeted or said)
                await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        breaker = CircuitBreaker(most_failures=1)
        address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        node = StoreNode(address, deadline_s=DEADLINE_S, breaker=breaker)
        with pytest.raises(NodeFailure, match="speak"):
            await CALLS[call](node)
        assert breaker.is_open
        await node.aclose()


async def test_calls_that_wait_for_others_do_not_break_a_node() -> None:
    async with valkey_server() as (address, process):
        node = StoreNode(address, deadline_s=DEADLINE_S, connections=1)
        await node.put(b"a", b"b")
        process.send_signal(signal.SIGSTOP)
        calls = await asyncio.gather(*(node.get(b"a") for _ in range(9)), return_exceptions=True)
        process.send_signal(signal.SIGCONT)
        assert all(isinstance(each, NodeFailure) for each in calls)
        assert not node.breaker.is_open
        assert await node.get(b"a") == b"b"
        await node.aclose()


async def test_a_call_that_is_cancelled_ends_so_at_whatever_step() -> None:
    async with valkey_server() as (address, _):
        node = StoreNode(address, deadline_s=20.0)
        for steps in range(20):
            await node.put(b"a", b"b")  # so that it is connected
            call = asyncio.create_task(node.get(b"a"))
            for _ in range(steps):
                await asyncio.sleep(0)
            ended = call.done()
            call.cancel()
            await asyncio.wait([call])
            assert call.cancelled() or ended, f"it went on when it was cancelled at step {steps}"
        assert await node.get(b"a") == b"b"
        assert not node.breaker.is_open
        await node.aclose()
