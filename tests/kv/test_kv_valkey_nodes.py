"""The service that keeps a target's valkey nodes, as a process of its own."""

import asyncio
import os
import signal
import sys
import time
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import aiohttp
import psutil
import pytest
import pytest_asyncio
from redis.asyncio import Redis

from kv_tiers.store import valkey_server
from loadgen.targets import engine_api
from loadgen.targets.hardware import free_ports
from loadgen.targets.own_routes import KEY_VARIABLE
from loadgen.targets.valkey_nodes import KEYS, UP, NodeRoutes

pytest.importorskip("uvicorn")
KEY = "of this test"


@dataclass
class NodesService:
    process: Process
    url: str
    ports: list[int]

    @property
    def nodes(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children()


@pytest_asyncio.fixture
async def service() -> AsyncIterator[NodesService]:
    port, *ports = free_ports(4)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "loadgen.targets.valkey_nodes", "--port", str(port)),
        *("--nodes", *map(str, ports)),
        env={**os.environ, KEY_VARIABLE: KEY},
    )
    url = f"http://127.0.0.1:{port}"
    try:
        await _until_ready(url)
        yield NodesService(process, url, ports)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def _until_ready(url: str) -> None:
    for _ in range(400):
        if await engine_api.is_ready(f"{url}/health"):
            return
        await asyncio.sleep(0.05)


async def test_nodes_are_counted_and_emptied_by_who_started_them(service: NodesService) -> None:
    for at, port in enumerate(service.ports):
        async with Redis(port=port, protocol=2) as client:
            await client.mset({f"{n}": "x" for n in range(at + 1)})
    assert await engine_api.metric(f"{service.url}/metrics", KEYS) == 6
    with pytest.raises(engine_api.ApiError, match="403"):
        await engine_api.reset(f"{service.url}/flush")
    assert await engine_api.metric(f"{service.url}/metrics", KEYS) == 6
    assert await engine_api.reset(f"{service.url}/flush", KEY)
    assert await engine_api.metric(f"{service.url}/metrics", KEYS) == 0


async def test_the_others_go_on_when_a_node_is_killed(service: NodesService) -> None:
    first = service.nodes[0]
    first.kill()
    first.wait(10)
    assert not await engine_api.is_ready(f"{service.url}/health")
    assert await engine_api.metric(f"{service.url}/metrics", UP) == 2
    assert await engine_api.reset(f"{service.url}/flush", KEY)
    assert service.process.returncode is None


async def asked(routes: NodeRoutes, method: str, path: str) -> int:
    """The status of what the application answers."""
    said: list[dict[str, Any]] = []

    async def send(message: dict[str, Any]) -> None:
        said.append(message)

    await routes({"method": method, "path": path}, None, send)  # type: ignore[arg-type]
    return int(said[0]["status"])


async def test_a_node_that_hangs_is_not_called_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    """When it goes on, what it holds is found in the next run."""
    monkeypatch.setattr("loadgen.targets.valkey_nodes.NODE_TIMEOUT_S", 0.2)
    async with (
        valkey_server() as (address, process),
        Redis.from_url(f"redis://{address}") as client,
    ):
        await client.set("a", "x")
        routes = NodeRoutes([address])
        process.send_signal(signal.SIGSTOP)
        try:
            assert await asked(routes, "POST", "/flush") == 503
        finally:
            process.send_signal(signal.SIGCONT)
        monkeypatch.setattr("loadgen.targets.valkey_nodes.NODE_TIMEOUT_S", 20.0)
        again = NodeRoutes([address])
        assert await asked(again, "POST", "/flush") == 200
        assert not await client.exists("a")
        for node in (*routes._nodes.values(), *again._nodes.values()):
            await node.aclose()


async def test_a_node_keeps_no_more_than_it_may() -> None:
    port, node = free_ports(2)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "loadgen.targets.valkey_nodes", "--port", str(port)),
        *("--node-gb", "0.01", "--nodes", str(node)),
        env={**os.environ, KEY_VARIABLE: KEY},
    )
    try:
        await _until_ready(f"http://127.0.0.1:{port}")
        async with Redis(port=node, protocol=2) as client:
            for at in range(40):
                await client.set(str(at), bytes(500_000))
            assert 0 < await client.dbsize() < 20, "the oldest went, and no write was refused"
            assert await client.exists("39")
    finally:
        process.terminate()
        await process.wait()


@pytest.mark.parametrize("how", ["terminate", "kill"])
async def test_no_node_outlives_it(service: NodesService, how: str) -> None:
    nodes = service.nodes
    assert len(nodes) == 3
    getattr(service.process, how)()
    await service.process.wait()
    assert psutil.wait_procs(nodes, 10)[1] == []


async def test_there_is_nothing_else(service: NodesService) -> None:
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"{service.url}/metrics/more") as response,
    ):
        assert response.status == 404


async def test_the_last_node_may_be_behind_a_link_that_ends_with_it() -> None:
    port, near, central, through = free_ports(4)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "loadgen.targets.valkey_nodes", "--port", str(port)),
        *("--nodes", str(near), str(central), "--link", str(through), "--latency-ms", "50"),
        env={**os.environ, KEY_VARIABLE: KEY},
    )
    try:
        await _until_ready(f"http://127.0.0.1:{port}")
        async with Redis(port=through, protocol=2) as client:
            begun_s = time.monotonic()
            await client.set("a", "x")
            assert time.monotonic() - begun_s >= 0.1, "there and back"
        async with Redis(port=central, protocol=2) as client:
            assert await client.get("a") == b"x"
        async with Redis(port=near, protocol=2) as client:
            assert await client.get("a") is None
        process.terminate()
        await process.wait()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", through)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
