"""A tier over real valkey servers, and LMCache's adapter of it: prefixes, codecs, deadlines."""

import asyncio
import json
import signal
import time
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from lmcache_objects import CHUNKS, SHAPE, SIZE, Objects, bits, content, result

from kv_tiers.link import SCHEDULERS, LinkProxy, LinkSettings, RateSchedule
from kv_tiers.store import valkey_server, valkey_servers
from kv_tiers.store.coder import RawChunk
from kv_tiers.store.evictions import EVICTIONS
from kv_tiers.store.settings import TierSettings
from kv_tiers.store.tier import PROBE_EVERY, RemoteTier

KEYS = [f"prefix {n}".encode() for n in range(CHUNKS)]
Servers = list[tuple[str, Process]]


@pytest_asyncio.fixture
async def servers() -> AsyncIterator[Servers]:
    async with valkey_servers([None] * 2) as running:
        yield running


def settings(servers: Servers, **more: Any) -> TierSettings:
    given = {"nodes": [address for address, _ in servers], "node_deadline_s": 5, **more}
    return TierSettings.of(given)


def raw(seed: int | None = None) -> RawChunk:
    return RawChunk(bytes(SIZE) if seed is None else content(seed), "bfloat16", SHAPE)


async def stored(tier: RemoteTier, keys: list[bytes] = KEYS) -> None:
    assert all(await tier.store(keys, [raw(at) for at in range(len(keys))]))


async def loaded(tier: RemoteTier, keys: list[bytes] = KEYS) -> dict[int, bytes]:
    found: dict[int, bytes] = {}
    await tier.load(keys, [raw() for _ in keys], lambda at, got: found.update({at: got.tobytes()}))
    return found


@pytest.mark.parametrize("run_chunks", [0, 1, 2])
async def test_a_prefix_is_looked_up_and_loaded(servers: Servers, run_chunks: int) -> None:
    async with RemoteTier(settings(servers, run_chunks=run_chunks)) as tier:
        assert await tier.lookup([KEYS]) == [0]
        await stored(tier, KEYS[:4])
        assert await tier.lookup([KEYS, KEYS[:2], [b"other", b"more"], []]) == [4, 2, 0, 0]
        assert await loaded(tier, KEYS[:4]) == {at: content(at) for at in range(4)}
        names = {tier._named(key).place for key in KEYS[:4]}
        assert len(names) == {0: 1, 1: 4, 2: 2}[run_chunks]


async def test_chunks_kept_before_anybody_asked_for_their_context_are_found(
    servers: Servers,
) -> None:
    """As those are which an engine fills while it generates; also by another user of the store."""
    async with RemoteTier(settings(servers)) as tier, RemoteTier(settings(servers)) as other:
        await stored(tier)
        for each in (tier, other):
            assert await each.lookup([KEYS]) == [CHUNKS]
            assert await loaded(each) == {at: content(at) for at in range(CHUNKS)}


async def test_a_gap_ends_a_prefix(servers: Servers) -> None:
    async with RemoteTier(settings(servers)) as tier:
        await tier.lookup([KEYS])
        await stored(tier)
        await tier._store.delete(tier._named(KEYS[2]))
        assert await tier.lookup([KEYS]) == [2]
        assert sorted(await loaded(tier)) == [0, 1, 3, 4, 5]


async def test_a_load_ends_at_its_deadline_with_what_has_come(servers: Servers) -> None:
    given = settings(servers, run_chunks=1, node_deadline_s=20.0, load_deadline_s=0.5)
    async with RemoteTier(given) as tier:
        await tier.lookup([KEYS])
        await stored(tier)
        hung, process = servers[0]
        mine = {at for at, key in enumerate(KEYS) if _holder(tier, key) == hung}
        process.send_signal(signal.SIGSTOP)
        begun = time.monotonic()
        found = await loaded(tier)
        assert 0.5 <= time.monotonic() - begun < 8.0, "and not the 20 s of a node"
        assert found == {at: content(at) for at in found}
        assert not mine & set(found)
        seen = dict(found)
        process.send_signal(signal.SIGCONT)
        await asyncio.sleep(0.2)
        assert found == seen, "nothing is written once a load has ended"


async def test_over_a_scarce_link_the_first_chunks_come_and_no_request_waits_for_the_rest(
    servers: Servers,
) -> None:
    address = servers[0][0].split(":")
    link = LinkSettings(RateSchedule.fixed(4 * SIZE / 125_000), SCHEDULERS["fifo"])
    async with LinkProxy(link, [0], address[0], int(address[1])) as proxy:
        through = {"nodes": [f"127.0.0.1:{proxy.ports[0]}"], "node_deadline_s": 20.0}
        given = TierSettings.of({**through, "load_deadline_s": 0.9, "at_once": 1})
        async with RemoteTier(given) as tier:
            await tier.lookup([KEYS])
            await stored(tier)
            found = await loaded(tier)
            assert 0 < len(found) < CHUNKS
            assert found == {at: content(at) for at in range(len(found))}
            tier.change({"load_deadline_s": 20.0})
            assert len(await loaded(tier)) == CHUNKS


def _holder(tier: RemoteTier, key: bytes) -> str:
    return tier._store._holders(tier._named(key).wire)[0]


async def test_where_computing_is_faster_lookups_find_nothing_but_to_try(
    servers: Servers,
) -> None:
    async with RemoteTier(settings(servers, recompute_chunks_per_s=1e9)) as tier:
        await stored(tier)
        assert await tier.lookup([KEYS]) == [CHUNKS], "nothing is known of the link"
        await loaded(tier)
        answers = [await tier.lookup([KEYS]) for _ in range(2 * PROBE_EVERY)]
        assert sum(answer == [CHUNKS] for answer in answers) == 2
        tier.change({"recompute_chunks_per_s": 1e-9})
        assert await tier.lookup([KEYS]) == [CHUNKS]


async def test_a_file_changes_nodes_and_codec_while_it_serves(
    servers: Servers, tmp_path: Path
) -> None:
    file = tmp_path / "settings.json"
    file.write_text("{}")
    async with RemoteTier(settings(servers), file) as tier, valkey_server() as (added, _):
        await stored(tier)
        file.write_text("[1]")
        await asyncio.sleep(0.6)
        assert tier.status()["nodes"] == [address for address, _ in servers]
        file.write_text(json.dumps({"nodes": [added], "codec": "int4"}))
        async with asyncio.timeout(20):
            while tier.status()["nodes"] != [added] or tier.status()["is_moving"]:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        for _, process in servers:
            process.kill()
        assert await tier.lookup([KEYS]) == [CHUNKS]
        assert await loaded(tier) == {at: content(at) for at in range(CHUNKS)}
        assert tier.status()["codec"] == "int4"
        assert 0 < max(await tier.store(KEYS[:1], [raw(0)])) < SIZE / 2


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({}, "nodes None must be a list of host:port"),
        ({"nodes": "a:1"}, "must be a list of host:port"),
        ({"nodes": []}, "a node or more"),
        ({"nodes": ["a:x"]}, "give host:port"),
        ({"nodes": ["a:1"], "codecs": "raw"}, "unknown setting 'codecs'"),
        ({"nodes": ["a:1"], "codec": "int5"}, "unknown codec 'int5'"),
        ({"nodes": ["a:1"], "placement": "ring"}, "unknown placement 'ring'"),
        ({"nodes": ["a:1"], "eviction": "fifo"}, "unknown eviction 'fifo'"),
        ({"nodes": ["a:1"], "near_bytes": -1}, "must be 0 or more"),
        ({"nodes": ["a:1"], "central": "b:1"}, "central .b:1. must be a list"),
        ({"nodes": ["a:1"], "central": ["b:x"]}, "give host:port"),
        ({"nodes": ["a:1"], "exchange_s": -1}, "exchange_s -1 must be 0 or more"),
        ({"nodes": ["a:1"], "load_deadline_s": 0}, "must be more than 0"),
        ({"nodes": ["a:1"], "load_deadline_s": "1"}, "wrong type"),
        ({"nodes": ["a:1"], "codec": "cachegen", "profile": "/none"}, "no profile in /none"),
    ],
)
async def test_settings_that_cannot_be_are_told(given: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        RemoteTier(TierSettings.of(given))


@pytest.fixture
def objects() -> Objects:
    pytest.importorskip("lmcache")
    return Objects()


def adapter_of(servers: Servers, **more: Any) -> Any:
    from kv_tiers.lmcache_adapter import StoreAdapter

    nodes = [address for address, _ in servers]
    return StoreAdapter({"nodes": nodes, "node_deadline_s": 5, **more})


@pytest.mark.parametrize("codec", ["raw", "int8"])
async def test_the_adapter_stores_looks_up_and_loads(
    servers: Servers, objects: Objects, codec: str
) -> None:
    adapter = adapter_of(servers, codec=codec)
    descriptors = (
        adapter.get_store_event_fd(),
        adapter.get_lookup_and_lock_event_fd(),
        adapter.get_load_event_fd(),
    )
    assert len(set(descriptors)) == 3
    objects.fill()
    task = adapter.submit_store_task(objects.keys[:4], objects.buffers[:4])
    (kept,) = await asyncio.to_thread(
        result, descriptors[0], lambda: adapter.pop_completed_store_tasks().items()
    )
    assert kept[0] == task
    assert kept[1].is_successful()
    assert adapter.get_usage().total_bytes_used == kept[1].bytes_transferred()
    task = adapter.submit_lookup_and_lock_task(objects.keys, {})
    found = await asyncio.to_thread(
        result, descriptors[1], lambda: adapter.query_lookup_and_lock_result(task)
    )
    assert bits(found) == [0, 1, 2, 3]
    assert adapter.query_lookup_and_lock_result(task) is None, "taken once"

    empty = Objects()
    task = adapter.submit_load_task(objects.keys, empty.buffers)
    found = await asyncio.to_thread(result, descriptors[2], lambda: adapter.query_load_result(task))
    assert bits(found) == [0, 1, 2, 3]
    if codec == "raw":
        assert empty.contents[:4] == objects.contents[:4]
    assert empty.contents[3] != bytes(SIZE)
    assert empty.contents[4:] == [bytes(SIZE)] * 2
    adapter.submit_unlock(objects.keys)
    assert adapter.report_status()["hits"] == 4
    adapter.close()


async def test_the_adapter_finds_and_loads_what_lies_behind_a_gap(
    servers: Servers, objects: Objects
) -> None:
    """LMCache's own memory may fill it: then it asks for the others alone."""
    adapter = adapter_of(servers)
    objects.fill()
    held = [1, 3, 4]
    keys, buffers = ([each[at] for at in held] for each in (objects.keys, objects.buffers))
    adapter.submit_store_task(keys, buffers)
    await asyncio.to_thread(
        result, adapter.get_store_event_fd(), lambda: adapter.pop_completed_store_tasks() or None
    )
    task = adapter.submit_lookup_and_lock_task(objects.keys, {})
    found = await asyncio.to_thread(
        result,
        adapter.get_lookup_and_lock_event_fd(),
        lambda: adapter.query_lookup_and_lock_result(task),
    )
    assert bits(found) == held
    empty = Objects()
    task = adapter.submit_load_task(objects.keys[3:5], empty.buffers[3:5])
    found = await asyncio.to_thread(
        result, adapter.get_load_event_fd(), lambda: adapter.query_load_result(task)
    )
    assert [at for at in range(2) if found.test(at)] == [0, 1]
    assert empty.contents[3:5] == objects.contents[3:5]
    adapter.close()


async def test_every_task_of_the_adapter_ends_whatever_happens(
    servers: Servers, objects: Objects
) -> None:
    adapter = adapter_of(servers)
    for _, process in servers:
        process.kill()
        await process.wait()
    adapter.submit_store_task(objects.keys, objects.buffers)
    (kept,) = await asyncio.to_thread(
        result, adapter.get_store_event_fd(), lambda: adapter.pop_completed_store_tasks().values()
    )
    assert not kept.is_successful()
    # What cannot be worked on at all: it has no bytes.
    task = adapter.submit_load_task(objects.keys[:1], [None])
    found = await asyncio.to_thread(
        result, adapter.get_load_event_fd(), lambda: adapter.query_load_result(task)
    )
    assert found.popcount() == 0
    adapter.close()


async def test_an_adapter_that_has_ended_still_answers(servers: Servers, objects: Objects) -> None:
    adapter = adapter_of(servers)
    adapter._thread.close()
    task = adapter.submit_lookup_and_lock_task(objects.keys, {})
    assert adapter.query_lookup_and_lock_result(task).popcount() == 0
    adapter.close()


async def test_the_adapter_refuses_settings_that_cannot_be(objects: Objects) -> None:
    with pytest.raises(ValueError, match="a node or more"):
        adapter_of([])


async def test_rows_of_groups_and_ranks_have_prefixes_of_their_own(
    servers: Servers, objects: Objects
) -> None:
    from dataclasses import replace

    adapter = adapter_of(servers)
    objects.fill()
    row, other = objects.keys[:3], [replace(key, kv_rank=1) for key in objects.keys[:3]]
    adapter.submit_store_task([*row[:1], *other], [*objects.buffers[:1], *objects.buffers[:3]])
    await asyncio.to_thread(
        result, adapter.get_store_event_fd(), lambda: adapter.pop_completed_store_tasks() or None
    )
    task = adapter.submit_lookup_and_lock_task([*row, *other], {})
    found = await asyncio.to_thread(
        result,
        adapter.get_lookup_and_lock_event_fd(),
        lambda: adapter.query_lookup_and_lock_result(task),
    )
    assert bits(found) == [0, 3, 4, 5]
    adapter.close()


async def test_what_is_on_its_way_to_nodes_arrives_when_the_adapter_ends(
    servers: Servers, objects: Objects, monkeypatch: pytest.MonkeyPatch
) -> None:
    adapter = adapter_of(servers, near_bytes=int(2.5 * SIZE))
    store = adapter._thread.tier._store
    put = store.put

    async def late(*frame: Any) -> int:
        await asyncio.sleep(0.3)
        return int(await put(*frame))

    monkeypatch.setattr(store, "put", late)
    objects.fill()
    adapter.submit_store_task(objects.keys, objects.buffers)
    await asyncio.to_thread(
        result, adapter.get_store_event_fd(), lambda: adapter.pop_completed_store_tasks() or None
    )
    await asyncio.to_thread(adapter.close)
    assert adapter.report_status()["spilled"] == CHUNKS


@pytest.mark.parametrize("eviction", EVICTIONS)
async def test_what_a_bounded_memory_gives_up_is_on_nodes(servers: Servers, eviction: str) -> None:
    given = settings(servers, near_bytes=int(2.5 * SIZE), eviction=eviction)
    async with RemoteTier(given) as tier:
        assert tier._near is not None
        await tier.lookup([KEYS])
        await stored(tier)
        await tier._near.settled()
        assert tier._near.near_bytes <= given.near_bytes
        assert tier.status()["spilled"] == CHUNKS - 2
        assert await tier.lookup([KEYS]) == [CHUNKS]
        assert await loaded(tier) == {at: content(at) for at in range(CHUNKS)}
        assert tier.status()["promoted"] > 0
        assert tier.status()["dropped"] == 0
    async with RemoteTier(settings(servers)) as other:
        assert await other.lookup([KEYS]) == [CHUNKS], "also what was in memory at the end"
        assert await loaded(other) == {at: content(at) for at in range(CHUNKS)}


async def test_a_memory_without_any_node_goes_on(servers: Servers) -> None:
    async with RemoteTier(settings(servers, near_bytes=3 * SIZE)) as tier:
        assert tier._near is not None
        for _, process in servers:
            process.kill()
        await tier.lookup([KEYS])
        await stored(tier)
        await tier._near.settled()
        assert tier.status()["dropped"] == CHUNKS - 2
        found = await loaded(tier)
        assert len(found) == 2
        assert found == {at: content(at) for at in found}


async def test_regions_share_what_one_of_them_stored_and_go_on_without_the_centre(
    servers: Servers,
) -> None:
    (region, _), (centre, of_centre) = servers
    given = {"nodes": [region], "central": [centre], "node_deadline_s": 5}
    async with RemoteTier(TierSettings.of(given)) as tier:
        await tier.lookup([KEYS])
        await stored(tier)
    async with valkey_server() as (elsewhere, _):
        other = TierSettings.of({**given, "nodes": [elsewhere], "central_deadline_s": 5})
        async with RemoteTier(other) as tier:
            assert await tier.lookup([KEYS]) == [CHUNKS], "all was written back at the end"
            assert await loaded(tier) == {at: content(at) for at in range(CHUNKS)}
            assert tier._regional is not None
            await tier._regional.settled()
            assert tier.status()["central_hits"] == CHUNKS
            of_centre.kill()
            await of_centre.wait()
            assert await tier.lookup([KEYS]) == [CHUNKS], "they are near now"
            assert await loaded(tier) == {at: content(at) for at in range(CHUNKS)}
            assert tier.status()["regional_hits"] == CHUNKS


async def test_without_its_region_a_tier_reads_what_the_centre_has(servers: Servers) -> None:
    (region, of_region), (centre, _) = servers
    given = {"nodes": [region], "central": [centre], "node_deadline_s": 5, "force_latest": True}
    async with RemoteTier(TierSettings.of(given)) as tier:
        assert tier._regional is not None
        await tier.lookup([KEYS])
        await stored(tier)
        assert await tier._regional.write_back()
        of_region.kill()
        await of_region.wait()
        assert await tier.lookup([KEYS]) == [CHUNKS]
        assert await loaded(tier) == {at: content(at) for at in range(CHUNKS)}
        assert region in tier.status()["broken_nodes"]
