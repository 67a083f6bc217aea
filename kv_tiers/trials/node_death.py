"""One of three real nodes is killed, comes back empty, and a fourth is added while readers read.

A reader asks for contexts as an engine does: a prefix is worth what it holds before its first gap.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from itertools import product

import numpy as np
from redis.asyncio import Redis

from kv_tiers.codecs import CODECS, pack
from kv_tiers.store import (
    CircuitBreaker,
    ShardedStore,
    StoreKey,
    StoreNode,
    in_runs,
    valkey_server,
    valkey_servers,
)
from kv_tiers.store.nodes import split_address
from kv_tiers.store.server import free_port
from kv_tiers.trials.figures import NetworkFigure

QUESTION = "death"
NODES = 3
CHUNK_WISE, WHOLE = "each chunk alone", "whole contexts"
BEFORE, KILLED = "all nodes", "a node killed"
FIRST_PASS, SECOND_PASS = "back empty, first pass", "second pass"
ADDING, ADDED = "while a fourth is added", "four nodes"
PAUSE_S = 0.2
"""After which the store tries a node again that has failed."""


@dataclass(frozen=True, slots=True)
class DeathPlan:
    """So many contexts of so many chunks; `runs` are lengths, 0 of whole contexts."""

    contexts: int = 60
    chunks: int = 15
    runs: tuple[int, ...] = (1, 5, 0)
    copies: tuple[int, ...] = (1, 2)


def subject_of(run_chunks: int, copies: int) -> str:
    """How rows name a placement of chunks."""
    runs = {0: WHOLE, 1: CHUNK_WISE}.get(run_chunks, f"runs of {run_chunks}")
    return f"{runs}, {copies} {'copy' if copies == 1 else 'copies'}"


async def kill_nodes(plan: DeathPlan) -> AsyncIterator[NetworkFigure]:
    """Of each placement and number of copies, on nodes of its own at the same addresses; each of
    them is killed in a repeat, so that the mean does not depend on what one happened to hold.
    Raises ServerError."""
    ports = [free_port() for _ in range(NODES)]
    for repeat, copies, run_chunks in product(range(NODES), plan.copies, plan.runs):
        trial = _DeathTrial(plan, ports, run_chunks=run_chunks, copies=copies, repeat=repeat)
        await trial.run()
        for row in trial.rows:
            yield row


class _DeathTrial:
    def __init__(
        self, plan: DeathPlan, ports: list[int], *, run_chunks: int, copies: int, repeat: int
    ) -> None:
        self.rows: list[NetworkFigure] = []
        self._ports, self._repeat = ports, repeat
        self._copies, self._subject = copies, subject_of(run_chunks, copies)
        self._contexts = [
            in_runs([b"context %d, chunk %d" % (at, n) for n in range(plan.chunks)], run_chunks)
            for at in range(plan.contexts)
        ]

    async def run(self) -> None:
        """One life of a store, from its first chunk to its fourth node."""
        async with AsyncExitStack() as stack:
            servers = await stack.enter_async_context(valkey_servers(self._ports))
            addresses = [address for address, _ in servers]
            store = ShardedStore(addresses, copies=self._copies, connect=_node)
            stack.push_async_callback(store.aclose)
            for name in _flat(self._contexts):
                await store.put(name, _frame(name))
            await self._read(store, BEFORE, addresses)
            address, process = servers[self._repeat]
            process.kill()
            await process.wait()
            await self._read(store, KILLED, [each for each in addresses if each != address])
            await stack.enter_async_context(valkey_server(split_address(address)[1]))
            await asyncio.sleep(2 * PAUSE_S)
            await self._read(store, FIRST_PASS, addresses, computing=True)
            await self._read(store, SECOND_PASS, addresses)
            fourth, _ = await stack.enter_async_context(valkey_server())
            await self._grow(store, [*addresses, fourth])

    async def _grow(self, store: ShardedStore, addresses: list[str]) -> None:
        store.set_nodes(addresses)
        moving = asyncio.create_task(store.move())
        await self._read(store, ADDING, addresses)
        self._add(ADDING, "moved_copies", await moving)
        await self._read(store, ADDED, addresses)

    async def _read(
        self, store: ShardedStore, setting: str, addresses: Sequence[str], computing: bool = False
    ) -> None:
        """All contexts once. `computing` writes again what was not there, as engines do."""
        repaired, leading, whole, computed = store.tally.repaired, 0, 0, 0
        for names in self._contexts:
            found = await _leading(store, names)
            leading, whole = leading + found, whole + (found == len(names))
            if computing:
                computed += len(names) - found
                for name in names[found:]:
                    await store.put(name, _frame(name))
        await store.settled()
        chunks = sum(map(len, self._contexts))
        self._add(setting, "prefix_share", leading / chunks)
        self._add(setting, "whole_contexts_share", whole / len(self._contexts))
        self._add(setting, "repaired_copies", store.tally.repaired - repaired)
        self._add(setting, "computed_chunks", computed)
        self._add(setting, "copies_share", await _kept(addresses) / (chunks * self._copies))

    def _add(self, setting: str, measure: str, value: float) -> None:
        row = NetworkFigure(QUESTION, self._subject, setting, measure, float(value), self._repeat)
        self.rows.append(row)


def _node(address: str, *, deadline_s: float) -> StoreNode:
    breaker = CircuitBreaker(pause_s=PAUSE_S)
    return StoreNode(address, deadline_s=deadline_s, breaker=breaker)


async def _leading(store: ShardedStore, names: Sequence[StoreKey]) -> int:
    """Chunks of a context before its first gap: looked up at once, then read one by one."""
    there = await store.has(names)
    for at, name in enumerate(names):
        if not there[at] or await store.get(name) is None:
            return at
    return len(names)


async def _kept(addresses: Sequence[str]) -> int:
    """Copies of chunks on these nodes, by their own count."""
    kept = 0
    for address in addresses:
        host, port = split_address(address)
        async with Redis(host=host, port=port, protocol=2) as client:
            kept += int(await client.dbsize())
    return kept


def _frame(name: StoreKey) -> bytes:
    return pack(CODECS["raw"](), np.zeros((1, 2, 4, 8), dtype=np.uint16), name.key)


def _flat(contexts: Sequence[Sequence[StoreKey]]) -> list[StoreKey]:
    return [name for names in contexts for name in names]
