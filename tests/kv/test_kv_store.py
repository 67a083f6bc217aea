"""The sharded store over real valkey servers: killed, stopped, emptied, added, removed."""

import asyncio
import os
import signal
import time
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Sequence

import numpy as np
import pytest
import pytest_asyncio
from redis.asyncio import Redis

from kv_tiers.codecs import CODECS, pack, unpack
from kv_tiers.store import (
    NodeFailure,
    ServerError,
    ShardedStore,
    StoreKey,
    StoreNode,
    in_runs,
    valkey_server,
    valkey_servers,
)
from kv_tiers.store.nodes import JOURNAL_START

CONTEXTS, CHUNKS = 60, 3
"""So many contexts that each of four nodes has some, whatever the ports are."""
DEADLINE_S = 0.5
SLACK_S = 5.0
"""What a busy machine may take on top of a deadline."""
Servers = list[tuple[str, Process]]


@pytest_asyncio.fixture
async def servers() -> AsyncIterator[Servers]:
    async with valkey_servers([None] * 3) as running:
        yield running


@pytest.fixture
def chunks() -> dict[StoreKey, bytes]:
    """Frames of contexts that lie together, each with bits that tell which it is."""
    found = {}
    for context in range(CONTEXTS):
        keys = [f"context {context} chunk {n}".encode() for n in range(CHUNKS)]
        for at, name in enumerate(in_runs(keys)):
            bits = np.full((2, 2, 8, 4), 100 * context + at, dtype=np.uint16)
            found[name] = pack(CODECS["raw"](), bits, name.key)
    return found


def addresses(servers: Servers) -> list[str]:
    return [address for address, _ in servers]


def opened(servers: Servers, copies: int) -> ShardedStore:
    return ShardedStore(addresses(servers), copies=copies, node_deadline_s=DEADLINE_S)


async def written(store: ShardedStore, chunks: dict[StoreKey, bytes], copies: int) -> None:
    assert [await store.put(name, frame) for name, frame in chunks.items()] == [copies] * len(
        chunks
    )


async def read(store: ShardedStore, chunks: dict[StoreKey, bytes]) -> int:
    """The hits; whatever comes is what was written."""
    found = {name: await store.get(name) for name in chunks}
    for name, frame in found.items():
        assert frame is None or frame == chunks[name]
    return sum(frame is not None for frame in found.values())


async def held(address: str) -> set[bytes]:
    host, port = address.split(":")
    async with Redis(host=host, port=int(port), protocol=2) as client:
        return set(await client.keys("*"))


def placed_first(store: ShardedStore, chunks: dict[StoreKey, bytes], address: str) -> int:
    return sum(store._holders(name.wire)[0] == address for name in chunks)


@pytest.mark.parametrize("copies", [1, 2])
async def test_after_the_death_of_a_node(
    servers: Servers, chunks: dict[StoreKey, bytes], copies: int
) -> None:
    store = opened(servers, copies)
    await written(store, chunks, copies)
    assert await read(store, chunks) == len(chunks)
    dead, process = servers[0]
    lost = placed_first(store, chunks, dead)
    assert 0 < lost < len(chunks)
    process.kill()
    await process.wait()
    begun = time.monotonic()
    names = list(chunks)
    told = await store.has(names)
    kept = await read(store, chunks)
    assert time.monotonic() - begun < 5 * DEADLINE_S + SLACK_S, "the breaker keeps calls away"
    assert kept == len(chunks) - (0 if copies == 2 else lost)
    assert sum(told) == kept
    if copies == 1:  # whole contexts are lost, and others are whole
        by_place = {name.place: told[at] for at, name in enumerate(names)}
        assert [by_place[name.place] for name in names] == told
    assert store.broken() == [dead]
    await store.aclose()


async def test_a_node_that_hangs_costs_its_deadline_and_never_mixes_answers_up(
    servers: Servers, chunks: dict[StoreKey, bytes]
) -> None:
    store = opened(servers, 1)
    await written(store, chunks, 1)
    hung, process = servers[1]
    mine = [name for name in chunks if store._holders(name.wire)[0] == hung]
    process.send_signal(signal.SIGSTOP)
    begun = time.monotonic()
    assert await asyncio.gather(*(store.get(name) for name in mine)) == [None] * len(mine)
    assert time.monotonic() - begun < DEADLINE_S + SLACK_S
    process.send_signal(signal.SIGCONT)
    for _ in range(300):  # the breaker lets a call through each second
        if await read(store, chunks) == len(chunks):
            break
        await asyncio.sleep(0.1)
    else:
        raise AssertionError("the node answers, and is not asked")
    await store.aclose()


async def test_an_empty_node_that_is_back_is_filled_by_reading(
    servers: Servers, chunks: dict[StoreKey, bytes]
) -> None:
    store = opened(servers, 2)
    await written(store, chunks, 2)
    address, process = servers[0]
    before = await held(address)
    process.kill()
    await process.wait()
    async with valkey_server(int(address.split(":")[1])) as again:
        assert again[0] == address
        assert all(await store.has(list(chunks))), "also where the first copy is whole"
        assert await read(store, chunks) == len(chunks)
        await store.settled()
        assert await held(address) == before
        assert store.tally.repaired == len(before)
    await store.aclose()


@pytest.mark.parametrize(
    "damage",
    [
        lambda frame: frame[:-1] + bytes([frame[-1] ^ 1]),
        lambda frame: frame[: len(frame) // 2],
        lambda frame: b"",
        lambda frame: frame + b"x",
    ],
    ids=["changed", "cut", "empty", "longer"],
)
@pytest.mark.parametrize("copies", [1, 2])
async def test_a_damaged_frame_is_a_miss_or_its_copy_and_is_written_again(
    servers: Servers, chunks: dict[StoreKey, bytes], damage: object, copies: int
) -> None:
    store = opened(servers, copies)
    await written(store, chunks, copies)
    name = list(chunks)[2]
    first = store._nodes[store._holders(name.wire)[0]]
    assert callable(damage)
    await first.put(name.wire, damage(chunks[name]))
    assert await store.get(name) == (None if copies == 1 else chunks[name])
    await store.settled()
    assert store.tally.corrupt == 1
    assert await first.get(name.wire) == (None if copies == 1 else chunks[name])
    assert await store.put(name, chunks[name]) == copies
    frame = await store.get(name)
    assert frame is not None
    assert (unpack(frame, name.key) == 2).all()
    await store.aclose()


async def test_a_frame_under_another_name_is_no_hit(
    servers: Servers, chunks: dict[StoreKey, bytes]
) -> None:
    store = opened(servers, 1)
    one, other = list(chunks)[:2]
    await store.put(one, chunks[other])
    assert await store.get(one) is None
    await store.aclose()


@pytest.mark.parametrize("copies", [1, 2])
async def test_nodes_come_and_go_while_it_serves(
    servers: Servers, chunks: dict[StoreKey, bytes], copies: int
) -> None:
    store = opened(servers, copies)
    await written(store, chunks, copies)
    async with valkey_server() as (added, _):
        store.set_nodes([*addresses(servers), added])
        assert store.is_moving
        assert all(await store.has(list(chunks)))
        assert await read(store, chunks) == len(chunks), "before anything has moved"
        await asyncio.gather(store.move(), read(store, chunks))
        await store.settled()
        assert not store.is_moving
        everywhere = [*addresses(servers), added]
        for address in everywhere:
            wanted = {name.wire for name in chunks if address in store._holders(name.wire)}
            assert await held(address) == wanted
        assert await held(added)

        store.set_nodes([*addresses(servers)[1:], added])
        assert await read(store, chunks) == len(chunks)
        await store.move()
        await store.settled()
        assert await held(addresses(servers)[0]) == set()
        assert await read(store, chunks) == len(chunks)
        assert addresses(servers)[0] not in store._nodes
    await store.aclose()


async def test_a_node_that_died_before_its_chunks_moved_does_not_hold_up_the_move(
    servers: Servers, chunks: dict[StoreKey, bytes]
) -> None:
    store = opened(servers, 1)
    await written(store, chunks, 1)
    gone, process = servers[2]
    kept = len(chunks) - placed_first(store, chunks, gone)
    process.kill()
    await process.wait()
    store.set_nodes(addresses(servers)[:2])
    async with asyncio.timeout(30):
        await store.move(pause_s=0.01)
    assert not store.is_moving
    assert await read(store, chunks) == kept
    await written(store, chunks, 1)
    assert await read(store, chunks) == len(chunks)
    await store.aclose()


async def test_deleted_everywhere(servers: Servers, chunks: dict[StoreKey, bytes]) -> None:
    store = opened(servers, 2)
    await written(store, chunks, 2)
    for name in chunks:
        await store.delete(name)
    assert not any(await store.has(list(chunks)))
    assert [await held(address) for address in addresses(servers)] == [set(), set(), set()]
    await store.aclose()


async def test_a_full_node_evicts_and_a_full_one_that_may_not_refuses() -> None:
    async with valkey_server(most_bytes=4 << 20) as (address, _):
        store = ShardedStore([address], node_deadline_s=5.0)
        names = [StoreKey.alone(f"{n}".encode()) for n in range(40)]
        for name in names:
            bits = np.zeros((1, 2, 128, 512), dtype=np.uint16)
            assert await store.put(name, pack(CODECS["raw"](), bits, name.key)) == 1
        assert 0 < sum(await store.has(names)) < 16, "of a quarter of a MiB each"
        host, port = address.split(":")
        async with Redis(host=host, port=int(port), protocol=2) as client:
            await client.config_set("maxmemory-policy", "noeviction")
            await client.config_set("maxmemory", "1mb")
        assert await store.put(names[0], b"x" * 100) == 0
        with pytest.raises(NodeFailure, match=r"refuses: .*maxmemory"):
            await store._nodes[address].put(b"a", b"b")
        assert store.broken() == []
        await store.aclose()


def test_what_cannot_be_a_store_is_told() -> None:
    with pytest.raises(ValueError, match="a node or more"):
        ShardedStore([])
    with pytest.raises(ValueError, match="give 1 or more"):
        ShardedStore(["a:1"], copies=0)


async def test_a_server_on_a_port_that_is_taken_says_so() -> None:
    async with valkey_server() as (address, process):
        with pytest.raises(ServerError, match=r"valkey on port \d+ has ended with code 1"):
            async with valkey_server(int(address.split(":")[1])):
                pass
        assert process.returncode is None
        pid = process.pid
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def test_chunks_that_move_while_they_are_asked_for_are_told(
    servers: Servers, chunks: dict[StoreKey, bytes]
) -> None:
    """The new node is asked before they are there, the old ones when they have gone."""
    async with valkey_server() as (added, _):
        asked, moved = asyncio.Event(), asyncio.Event()

        class HeldNode(StoreNode):
            async def exists(self, names: Sequence[bytes]) -> list[bool]:
                if len(names) > 1 and self.address != added:
                    await moved.wait()
                found = await super().exists(names)
                if len(names) > 1 and self.address == added:
                    asked.set()
                return found

        store = ShardedStore(addresses(servers), connect=HeldNode)
        await written(store, chunks, 1)
        store.set_nodes([*addresses(servers), added])
        asking = asyncio.create_task(store.has(list(chunks)))
        await asked.wait()
        assert await store.move() > 0
        moved.set()
        assert all(await asking)
        await store.aclose()


async def test_a_journal_is_read_from_where_one_was_and_tells_what_has_gone(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kv_tiers.store.nodes.ENTRIES_AT_ONCE", 2)
    store, other = opened(servers, 1), opened(servers, 1)
    for number in range(5):
        assert await store.note(b"%d" % number)
    found: list[bytes] = []
    position = JOURNAL_START
    while (part := await other.notes(position)) and part.entries:
        assert part.is_whole
        found += [entry for _, entry in part.entries]
        position = part.entries[-1][0]
    assert found == [b"0", b"1", b"2", b"3", b"4"]
    journal = next(each for each in servers if each[0] == store._journal_node)
    host, port = journal[0].split(":")
    async with Redis(host=host, port=int(port), protocol=2) as client:
        await client.flushall()
    await asyncio.sleep(0.005)  # positions are of milliseconds
    assert await store.note(b"later")
    part = await other.notes(position)
    assert part is not None
    assert ([entry for _, entry in part.entries], part.is_whole) == ([b"later"], False)
    journal[1].kill()
    await journal[1].wait()
    assert not await store.note(b"nobody hears")
    assert await other.notes(position) is None
    for each in (store, other):
        await each.aclose()


async def test_what_a_dead_node_might_have_is_not_known(
    servers: Servers, chunks: dict[StoreKey, bytes]
) -> None:
    store = opened(servers, 1)
    names = list(chunks)
    await written(store, {name: chunks[name] for name in names[:-1]}, 1)
    assert await store.known(names) == [True] * (len(names) - 1) + [False]
    dead, process = servers[0]
    process.kill()
    await process.wait()
    told = await store.known(names)
    lost = [store._holders(name.wire)[0] == dead for name in names]
    assert [each is None for each in told] == lost
    assert await store.has(names) == [each is True for each in told]
    assert [await store.delete(name) for name in names[:30]] == [not each for each in lost[:30]]
    await store.aclose()
