"""Valkey nodes of a target as one service: `python -m` this module, `--port P --nodes P1 P2 …`.

With `--link P3` the last one is also to be had at P3, behind a link of `--rate-mbit`.

A service is asked over HTTP whether it is ready, for its metrics, and to be emptied; valkey speaks
none. This process starts the nodes, answers for them, and ends them with itself. A node that dies
meanwhile stays dead, and the others go on: what that does is for the store to show.
"""

import argparse
import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import uvicorn
from redis.asyncio import Redis
from redis.exceptions import ConnectionError as GoneError
from redis.exceptions import RedisError

from kv_tiers.link import SCHEDULERS, LinkProxy, LinkSettings, RateSchedule
from kv_tiers.store import valkey_servers
from kv_tiers.store.nodes import split_address
from loadgen.targets.own_routes import Message, OwnRoutes
from loadgen.targets.plan import BYTES_PER_GB
from loadgen.targets.settings import LOOPBACK

KEYS, BYTES, UP = "kvswarm_store_keys", "kvswarm_store_bytes", "kvswarm_store_node_up"
NODE_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class NodeState:
    """Of a node that answers."""

    keys: int
    used_bytes: int


class NodeRoutes:
    """GET /health and /metrics, POST /flush, over all nodes."""

    def __init__(self, addresses: Sequence[str]) -> None:
        self._nodes = {
            address: Redis.from_url(f"redis://{address}", socket_timeout=NODE_TIMEOUT_S, protocol=2)
            for address in addresses
        }

    async def __call__(
        self, scope: Message, receive: Callable[..., Any], send: Callable[..., Any]
    ) -> None:
        """As any ASGI application; `uvicorn` is told that there is no lifespan."""
        asked = scope["method"], scope["path"]
        if asked == ("GET", "/health"):
            up = all((await self._states()).values())
            await _answer(send, 200 if up else 503, "ok\n" if up else "a node does not answer\n")
        elif asked == ("GET", "/metrics"):
            await _answer(send, 200, exposition(await self._states()))
        elif asked == ("POST", "/flush"):
            if all(await asyncio.gather(*map(_is_emptied, self._nodes.values()))):
                await _answer(send, 200, "{}", "application/json")
            else:
                await _answer(send, 503, "a node that hangs still has what it had\n")
        else:
            await _answer(send, 404, "no such route\n")

    async def _states(self) -> dict[str, NodeState | None]:
        states = await asyncio.gather(*map(_state, self._nodes.values()))
        return dict(zip(self._nodes, states, strict=True))


def exposition(states: Mapping[str, NodeState | None]) -> str:
    """As Prometheus' text. A node that does not answer has no keys that anybody could read."""
    lines = []
    for address, state in states.items():
        label = f'{{node="{address}"}}'
        lines.append(f"{UP}{label} {int(state is not None)}")
        if state is not None:
            lines += [f"{KEYS}{label} {state.keys}", f"{BYTES}{label} {state.used_bytes}"]
    return "\n".join((*lines, ""))


async def _state(node: Redis) -> NodeState | None:
    try:
        keys, memory = await node.dbsize(), await node.info("memory")
    except (RedisError, OSError):
        return None
    return NodeState(int(keys), int(memory["used_memory"]))


async def _is_emptied(node: Redis) -> bool:
    """Also where it has ended, and all it held with it; one that hangs may go on with it later."""
    try:
        await node.flushall()
    except (RedisError, OSError) as error:
        return isinstance(error, GoneError)
    return True


async def _answer(
    send: Callable[..., Any], status: int, text: str, kind: str = "text/plain"
) -> None:
    headers = [(b"content-type", kind.encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": text.encode()})


async def _serve(parsed: argparse.Namespace) -> None:
    async with contextlib.AsyncExitStack() as stack:
        most_bytes = round(parsed.node_gb * BYTES_PER_GB)
        servers = valkey_servers(parsed.nodes, most_bytes=most_bytes)
        addresses = [address for address, _ in await stack.enter_async_context(servers)]
        if parsed.link is not None:
            schedule = RateSchedule.fixed(parsed.rate_mbit)
            link = LinkSettings(schedule, SCHEDULERS["fifo"], parsed.latency_ms)
            proxy = LinkProxy(link, [parsed.link], *split_address(addresses[-1]))
            await stack.enter_async_context(proxy)
        app, port = OwnRoutes(NodeRoutes(addresses)), parsed.port
        config = uvicorn.Config(app, host=LOOPBACK, port=port, lifespan="off", log_level="warning")
        await uvicorn.Server(config).serve()


def main(words: Sequence[str] | None = None) -> None:
    """Serve until a signal."""
    parser = argparse.ArgumentParser(prog="loadgen.targets.valkey_nodes")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--nodes", type=int, nargs="+", required=True)
    parser.add_argument("--node-gb", type=float, default=1.0)
    parser.add_argument("--link", type=int)
    parser.add_argument("--rate-mbit", type=float, default=1000.0)
    parser.add_argument("--latency-ms", type=float, default=0.0)
    asyncio.run(_serve(parser.parse_args(words)))


if __name__ == "__main__":
    main()
