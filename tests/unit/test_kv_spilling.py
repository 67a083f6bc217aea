"""Memory before a store of nodes, while frames are on their way to it."""

import asyncio
from collections.abc import Sequence

from kv_tiers.store import ShardedStore, StoreKey
from kv_tiers.store.evictions.lru import LruEviction
from kv_tiers.store.spilling import SpillingStore

SIZE = 10
A, B, C = (StoreKey.alone(key) for key in (b"a", b"b", b"c"))


class HeldStore(ShardedStore):
    """Every frame waits until it is told how many copies of it were written."""

    def __init__(self) -> None:
        super().__init__(["127.0.0.1:1"])
        self.kept: set[bytes] = set()
        self.waiting: list[tuple[StoreKey, asyncio.Future[int]]] = []

    async def put(self, name: StoreKey, frame: bytes) -> int:
        copies: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.waiting.append((name, copies))
        if await copies:
            self.kept.add(name.wire)
        return copies.result()

    async def has(self, names: Sequence[StoreKey]) -> list[bool]:
        return [name.wire in self.kept for name in names]


def spilling(frames: int) -> tuple[HeldStore, SpillingStore]:
    far = HeldStore()
    return far, SpillingStore(far, LruEviction(frames * SIZE))


async def all_waiting(far: HeldStore, count: int) -> None:
    while len(far.waiting) < count:  # noqa: ASYNC110
        await asyncio.sleep(0)


async def test_who_stops_waiting_for_spills_stops_none_of_them() -> None:
    far, store = spilling(1)
    for name in (A, B, C):
        await store.put(name, bytes(SIZE))
    await all_waiting(far, 2)
    for waits in (store.settled(), store.delete(StoreKey.alone(b"other"))):
        waiting = asyncio.create_task(waits)
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])
        assert waiting.cancelled()
    for _, copies in far.waiting:
        copies.set_result(1)
    await store.settled()
    assert far.kept == {A.wire, B.wire}
    assert store.tally.spilled == 2


async def test_a_frame_that_leaves_twice_is_found_until_it_has_arrived() -> None:
    far, store = spilling(1)
    for name, content in ((A, b"1"), (B, b"2"), (A, b"3"), (C, b"4")):
        await store.put(name, content * SIZE)
    await all_waiting(far, 3)
    first, _, second = far.waiting
    assert first[0] == second[0] == A
    first[1].set_result(0)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert store.tally.dropped == 1
    assert await store.has([A]) == [True]
    assert await store.get(A) == b"3" * SIZE
    await store.aclose()


async def test_what_nodes_have_lost_since_it_was_read_is_written_again() -> None:
    far, store = spilling(1)
    frames = {A.wire: b"1" * SIZE}

    async def get(name: StoreKey) -> bytes | None:
        return frames.get(name.wire)

    far.get = get  # type: ignore[method-assign]
    far.kept.add(A.wire)
    for is_there in (True, False):
        assert await store.get(A) == frames[A.wire]
        if not is_there:
            far.kept.clear()
        await store.put(B, bytes(SIZE))  # A is given up
        await all_waiting(far, 0 if is_there else 2)
        for _, copies in far.waiting:
            if not copies.done():
                copies.set_result(1)
        await store.settled()
        assert [name for name, _ in far.waiting].count(A) == (0 if is_there else 1)
    assert store.tally.dropped == 0
