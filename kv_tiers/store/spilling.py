"""Memory of our own before a store of nodes: what it gives up goes to the nodes, not away."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from kv_tiers.store.evictions.eviction import TierEviction
from kv_tiers.store.placement import StoreKey
from kv_tiers.store.regional import RegionalStore
from kv_tiers.store.sharded import ShardedStore

AT_ONCE, MOST_SPILLING = 4, 64
"""Frames on their way to nodes: while there are more, what is given up is dropped, and counted."""


@dataclass(slots=True)
class SpillTally:
    """What has happened in memory; the nodes' store has a tally of its own."""

    near_hits: int = 0
    promoted: int = 0
    """Frames that came back from nodes."""
    spilled: int = 0
    """Frames that nodes have taken."""
    dropped: int = 0
    """Frames that no node has taken, or too many were on their way."""


class SpillingStore:
    """Frames by their StoreKey in at most `eviction.capacity_bytes` of memory, and behind it on
    nodes. It belongs to one event loop; the nodes' store is not ended with it."""

    def __init__(self, far: ShardedStore | RegionalStore, eviction: TierEviction) -> None:
        self.tally = SpillTally()
        self.near_bytes = 0
        self._far, self._eviction = far, eviction
        self._near: dict[bytes, tuple[StoreKey, bytes]] = {}
        self._spilling: dict[bytes, bytes] = {}
        """Given up, and not yet on a node: still found."""
        self._on_nodes: set[bytes] = set()
        """Of what is in memory, that which came from a node or went to one: it may be there."""
        self._window = asyncio.Semaphore(AT_ONCE)
        self._tasks: set[asyncio.Task[None]] = set()

    async def put(self, name: StoreKey, frame: bytes, recompute_s: float = 1.0) -> bool:
        """Whether it is in memory or on a node now."""
        if len(frame) > self._eviction.capacity_bytes:
            return await self._far.put(name, frame) > 0
        self._keep(name, frame, recompute_s)
        return True

    async def get(self, name: StoreKey, recompute_s: float = 1.0) -> bytes | None:
        """From memory, or from a node, and then it is in memory again."""
        wire = name.wire
        if (kept := self._near.get(wire)) is not None:
            self._eviction.use(wire)
            self.tally.near_hits += 1
            return kept[1]
        if (leaving := self._spilling.get(wire)) is not None:
            self.tally.near_hits += 1
            return leaving
        frame = await self._far.get(name)
        if frame is not None and len(frame) <= self._eviction.capacity_bytes:
            self._keep(name, frame, recompute_s)
            self._on_nodes.add(wire)
            self.tally.promoted += 1
        return frame

    async def has(self, names: Sequence[StoreKey]) -> list[bool]:
        """Of each, whether it is in memory or a node says so."""
        found = [name.wire in self._near or name.wire in self._spilling for name in names]
        missing = [at for at, here in enumerate(found) if not here]
        if missing:
            told = await self._far.has([names[at] for at in missing])
            for at, there in zip(missing, told, strict=True):
                found[at] = there
        return found

    def is_near(self, name: StoreKey) -> bool:
        """Whether it needs no far link, as far as is known without asking."""
        wire = name.wire
        return wire in self._near or wire in self._spilling or self._far.is_near(name)

    def use(self, context: Sequence[StoreKey]) -> None:
        """Chunks of one context were used together: the first ones are given up last."""
        self._eviction.use_context([name.wire for name in context if name.wire in self._near])

    async def delete(self, name: StoreKey) -> None:
        """In memory and on the nodes."""
        wire = name.wire
        self._take_out(wire)
        await self.settled()
        await self._far.delete(name)

    async def spill(self) -> None:
        """Have all of the memory on nodes, as before an end."""
        for name, frame in [*self._near.values()]:
            if not await self._is_far(name) and await self._far.put(name, frame):
                self._on_nodes.add(name.wire)
                self.tally.spilled += 1
        await self.settled()

    async def settled(self) -> None:
        """Return when nothing is on its way to a node. To stop waiting stops nothing else."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def aclose(self) -> None:
        """Drop what is still on its way."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _keep(self, name: StoreKey, frame: bytes, recompute_s: float) -> None:
        wire = name.wire
        self._take_out(wire)
        while self.near_bytes + len(frame) > self._eviction.capacity_bytes:
            self._give_up(self._eviction.victim())
        self._near[wire] = name, frame
        self.near_bytes += len(frame)
        self._eviction.add(wire, len(frame), recompute_s)

    def _take_out(self, wire: bytes) -> None:
        if (before := self._near.pop(wire, None)) is not None:
            self.near_bytes -= len(before[1])
            self._eviction.remove(wire)
            self._on_nodes.discard(wire)

    def _give_up(self, wire: bytes) -> None:
        name, frame = self._near.pop(wire)
        self.near_bytes -= len(frame)
        if len(self._spilling) >= MOST_SPILLING:
            self.tally.dropped += wire not in self._on_nodes
            self._on_nodes.discard(wire)
        else:
            self._spilling[wire] = frame
            task = asyncio.create_task(self._spill_one(name, frame))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _is_far(self, name: StoreKey) -> bool:
        """Whether a node still has it: what is used here is never asked for there, where it is
        given up for that."""
        return name.wire in self._on_nodes and (await self._far.has([name]))[0]

    async def _spill_one(self, name: StoreKey, frame: bytes) -> None:
        try:
            async with self._window:
                if await self._is_far(name):
                    return
                kept = await self._far.put(name, frame)
        finally:
            self._on_nodes.discard(name.wire)
            if self._spilling.get(name.wire) is frame:  # and not one that was given up after it
                del self._spilling[name.wire]
        if kept:
            self.tally.spilled += 1
        else:
            self.tally.dropped += 1
