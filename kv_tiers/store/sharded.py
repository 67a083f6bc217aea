"""A store of checked frames over several nodes: copies, repair on reading, and nodes that change.

A frame that cannot be had, whole and of its key, is not there: no method raises for what a node
does, and none takes longer than a node's deadline times the nodes that it asks.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

from kv_tiers.codecs.frame import FrameError, checked
from kv_tiers.store.nodes import JournalPart, NodeFailure, StoreNode
from kv_tiers.store.placement import Placement, StoreKey, place_of
from kv_tiers.store.placements.rendezvous import Rendezvous

MOST_LACKING = 100_000
MOST_PASSES = 5
JOURNAL = b"kvswarm-journal"
"""On one node, and no frame."""
_LOG = logging.getLogger(__name__)


@dataclass(slots=True)
class StoreTally:
    """What has happened: chunks of which a frame was asked for, and what was done beside."""

    hits: int = 0
    misses: int = 0
    corrupt: int = 0
    """Frames that were deleted."""
    repaired: int = 0
    """Copies written because a reader missed them."""
    moved: int = 0
    """Copies written because nodes came or went."""
    failures: int = 0
    """Calls of a node that failed."""


class ShardedStore:
    """Frames by their StoreKey, `copies` of each. It belongs to one event loop; `aclose` ends
    it."""

    def __init__(
        self,
        nodes: Sequence[str],
        *,
        copies: int = 1,
        placement: Placement | None = None,
        node_deadline_s: float = 1.0,
        connect: Callable[..., StoreNode] = StoreNode,
    ) -> None:
        """Raises ValueError without any node, or for an address that is none."""
        if copies < 1:
            raise ValueError(f"{copies} copies: give 1 or more")
        self.tally = StoreTally()
        self._copies, self._placement = copies, placement or Rendezvous()
        self._connect, self._deadline_s = connect, node_deadline_s
        self._nodes: dict[str, StoreNode] = {}
        self._rings: list[tuple[str, ...]] = []
        """The present node list first, then earlier ones whose chunks have not all been moved."""
        self._lacking: dict[bytes, set[str]] = {}
        """Holders that were seen without a chunk that another one has."""
        self._tasks: set[asyncio.Task[None]] = set()
        self.set_nodes(nodes)

    @property
    def nodes(self) -> tuple[str, ...]:
        """Those that new chunks go to."""
        return self._rings[0]

    @property
    def is_moving(self) -> bool:
        """Whether earlier node lists still count in lookups."""
        return len(self._rings) > 1

    def broken(self) -> list[str]:
        """The nodes that are left alone for now."""
        return [each.address for each in list(self._nodes.values()) if each.breaker.is_open]

    def is_near(self, name: StoreKey) -> bool:
        """No chunk is: all of them come over a link."""
        return False

    def set_nodes(self, nodes: Sequence[str]) -> None:
        """Have these from now on; what lies elsewhere is found there until `move` is done.

        Raises ValueError, and changes nothing, without any node or for an address that is none.
        """
        ring = tuple(dict.fromkeys(nodes))
        if not ring:
            raise ValueError("a store needs a node or more")
        made = {
            address: self._connect(address, deadline_s=self._deadline_s)
            for address in ring
            if address not in self._nodes
        }
        self._nodes |= made
        self._rings = [ring, *(each for each in self._rings if each != ring)]

    async def put(self, name: StoreKey, frame: bytes) -> int:
        """The number of copies that could be written."""
        wire = name.wire
        kept = await asyncio.gather(*(self._put(node, wire, frame) for node in self._holders(wire)))
        return sum(kept)

    async def get(self, name: StoreKey) -> bytes | None:
        """A whole frame of this key; holders that were found without it get a copy.

        One that moves may leave its old place after its new one was asked: it is asked for again.
        """
        rings = self._rings
        frame = await self._look(name)
        if frame is None and self._has_moved(rings):
            frame = await self._look(name)
        if frame is None:
            self.tally.misses += 1
        else:
            self.tally.hits += 1
        return frame

    def _has_moved(self, rings: list[tuple[str, ...]]) -> bool:
        """Whether chunks may have gone elsewhere since the node lists were these."""
        return len(rings) > 1 or rings is not self._rings

    async def _look(self, name: StoreKey) -> bytes | None:
        wire = name.wire
        lacking = self._lacking.pop(wire, set())
        for node in self._candidates(wire):
            try:
                frame = await self._node(node).get(wire)
            except NodeFailure as failure:
                self._tell(failure)
                continue
            if frame is not None and _is_whole(frame, name.key):
                self._repair(wire, frame, lacking - {node})
                return frame
            lacking.add(node)
            if frame is not None:
                self.tally.corrupt += 1
                await self._drop(node, wire)
        return None

    async def has(self, names: Sequence[StoreKey]) -> list[bool]:
        """Of each, whether a node says so. Its frame may still be gone or corrupt."""
        return [*map(bool, await self.known(names))]

    async def known(self, names: Sequence[StoreKey]) -> list[bool | None]:
        """As `has`; None where no node has it, and not all that might have it have answered.

        As in `get`, what may have moved meanwhile is asked for again.
        """
        rings = self._rings
        found = await self._ask(names)
        missing = [at for at, there in enumerate(found) if not there]
        if missing and self._has_moved(rings):
            again = await self._ask([names[at] for at in missing])
            for at, there in zip(missing, again, strict=True):
                found[at] = there
        return found

    async def _ask(self, names: Sequence[StoreKey]) -> list[bool | None]:
        wires = [name.wire for name in names]
        asked: dict[str, list[bytes]] = {}
        for wire in dict.fromkeys(wires):
            for node in self._candidates(wire):
                asked.setdefault(node, []).append(wire)
        told = await asyncio.gather(*(self._exists(node, those) for node, those in asked.items()))
        answers = dict(zip(asked, told, strict=True))
        holding = {wire: {node for node in asked if answers[node].get(wire)} for wire in wires}
        for wire, nodes in holding.items():
            self._note_lacking(wire, nodes, answers)
        silent = {node for node in asked if not answers[node]}
        unsure = {w for w in wires if silent and silent.intersection(self._candidates(w))}
        return [bool(holding[w]) or (None if w in unsure else False) for w in wires]

    async def delete(self, name: StoreKey) -> bool:
        """On every node that may have it; whether all have answered."""
        wire = name.wire
        nodes = self._candidates(wire)
        return all(await asyncio.gather(*(self._drop(node, wire) for node in nodes)))

    async def note(self, entry: bytes) -> bool:
        """Write it behind all others in the journal of this store; whether that was done."""
        return await self._did(self._journal_node, lambda node: node.append(JOURNAL, entry))

    async def notes(self, position: bytes) -> JournalPart | None:
        """The next entries of the journal; None where its node does not answer."""
        try:
            return await self._node(self._journal_node).behind(JOURNAL, position)
        except NodeFailure as failure:
            self._tell(failure)
            return None

    async def move(self, pause_s: float = 1.0) -> int:
        """Bring chunks of earlier node lists to where the present one has them, then forget those
        lists. Returns the copies that were written.

        A node that does not answer is tried in several passes; what it holds is found no more
        once they are over.
        """
        before = self.tally.moved
        for last in range(MOST_PASSES):
            present, earlier = self._rings[0], self._rings[1:]
            nodes = dict.fromkeys(chain.from_iterable(earlier))
            whole = [await self._move_from(node) for node in nodes]
            if present != self._rings[0]:
                continue  # changed again meanwhile: what is there now is to be moved anew
            if all(whole) or last == MOST_PASSES - 1:
                self._rings = [present]
                await self._leave_unused()
                break
            await asyncio.sleep(pause_s)
        return self.tally.moved - before

    async def settled(self) -> None:
        """Return when repairs that readers began are done. To stop waiting stops none of them."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def aclose(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(each.aclose() for each in self._nodes.values()))

    @property
    def _journal_node(self) -> str:
        return self._placement.order(JOURNAL, self.nodes)[0]

    def _holders(self, wire: bytes, ring: tuple[str, ...] | None = None) -> tuple[str, ...]:
        return self._placement.order(place_of(wire), ring or self.nodes)[: self._copies]

    def _candidates(self, wire: bytes) -> Iterable[str]:
        """Where it may be: its holders of today first."""
        return dict.fromkeys(
            chain.from_iterable(self._holders(wire, ring) for ring in self._rings)
        ).keys()

    def _note_lacking(
        self, wire: bytes, holding: set[str], answers: dict[str, dict[bytes, bool]]
    ) -> None:
        """A hit on the first copy would never show that the second is gone."""
        lacking = {node for node in self._holders(wire) if answers.get(node, {}).get(wire) is False}
        if holding and lacking:
            self._lacking[wire] = lacking
            if len(self._lacking) > MOST_LACKING:
                del self._lacking[next(iter(self._lacking))]

    def _repair(self, wire: bytes, frame: bytes, lacking: set[str]) -> None:
        for node in lacking.intersection(self._holders(wire)):
            self._begin(self._written(node, wire, frame))

    def _begin(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _written(self, node: str, wire: bytes, frame: bytes) -> None:
        kept = await self._put(node, wire, frame)
        self.tally.repaired += kept

    async def _move_from(self, address: str) -> bool:
        """Whether all that this node has is now where it belongs."""
        whole = True
        try:
            async for names in self._node(address).names():
                for wire in names:
                    whole &= await self._move_one(address, wire)
        except NodeFailure as failure:
            self._tell(failure)
            return False
        return whole

    async def _move_one(self, address: str, wire: bytes) -> bool:
        """Raises NodeFailure where the node itself does not answer."""
        holders = self._holders(wire)
        others = [node for node in holders if node != address]
        there = {node: (await self._exists(node, [wire])).get(wire) for node in others}
        if any(has is False for has in there.values()):
            frame = await self._node(address).get(wire)
            if frame is None:
                return True  # deleted meanwhile
            for node in (each for each, has in there.items() if has is False):
                there[node] = await self._put(node, wire, frame)
                self.tally.moved += bool(there[node])
        if not all(there.values()):
            return False
        if address not in holders:
            await self._drop(address, wire)
        return True

    async def _leave_unused(self) -> None:
        for address in [*self._nodes]:
            # While another one closed it may have been taken back.
            if address not in self.nodes and (node := self._nodes.pop(address, None)) is not None:
                await node.aclose()

    def _node(self, address: str) -> StoreNode:
        """Raises NodeFailure for one that was left while somebody read."""
        if address not in self._nodes:
            raise NodeFailure(f"node {address} is no longer one of ours")
        return self._nodes[address]

    async def _put(self, address: str, wire: bytes, frame: bytes) -> bool:
        return await self._did(address, lambda node: node.put(wire, frame))

    async def _drop(self, address: str, wire: bytes) -> bool:
        return await self._did(address, lambda node: node.delete(wire))

    async def _did(self, address: str, work: Callable[[StoreNode], Awaitable[object]]) -> bool:
        """Whether a node did its work; a failure is told."""
        try:
            await work(self._node(address))
        except NodeFailure as failure:
            self._tell(failure)
            return False
        return True

    async def _exists(self, address: str, wires: Sequence[bytes]) -> dict[bytes, bool]:
        """Empty where the node does not tell."""
        try:
            return dict(zip(wires, await self._node(address).exists(wires), strict=True))
        except NodeFailure as failure:
            self._tell(failure)
            return {}

    def _tell(self, failure: Exception) -> None:
        self.tally.failures += 1
        _LOG.debug("%s", failure)


def _is_whole(frame: bytes, key: bytes) -> bool:
    try:
        checked(frame, key)
    except FrameError:
        return False
    return True
