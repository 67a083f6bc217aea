"""What a tier on nodes is told, what it learns of its links, and what becomes of a broken store."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from kv_tiers.store.coder import RawChunk
from kv_tiers.store.placement import StoreKey
from kv_tiers.store.settings import TierSettings, follow
from kv_tiers.store.sharded import ShardedStore
from kv_tiers.store.tier import PROBE_EVERY, RemoteTier

NODES = {"nodes": ["127.0.0.1:1"]}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("codec", ["int8"]),
        ("level", "2"),
        ("level", 1.0),
        ("copies", "2"),
        ("copies", 1.5),
        ("copies", True),
        ("run_chunks", "2"),
        ("run_chunks", -1),
        ("at_once", 2.5),
        ("recompute_chunks_per_s", "8"),
        ("recompute_chunks_per_s", -1),
        ("load_deadline_s", "5"),
        ("load_deadline_s", None),
        ("load_deadline_s", 10**400),
        ("exchange_s", 10**400),
        ("near_bytes", float("nan")),
        ("placement", {}),
        ("eviction", 3),
        ("profile", 3),
        ("force_latest", "yes"),
    ],
)
def test_a_setting_of_the_wrong_kind_is_one_line(name: str, value: object) -> None:
    with pytest.raises(ValueError, match=name) as error:
        TierSettings.of({**NODES, name: value})
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("given", "owner"),
    [
        ({"eviction": "arc"}, "near_bytes"),
        ({"force_latest": True}, "central"),
        ({"exchange_s": 2}, "central"),
        ({"central_deadline_s": 9.5}, "central"),
    ],
)
def test_a_setting_of_what_is_not_there_is_refused(given: dict[str, Any], owner: str) -> None:
    (name,) = given
    with pytest.raises(ValueError, match=f"{name} means nothing without {owner}"):
        TierSettings.of({**NODES, **given})
    there: dict[str, Any] = {"near_bytes": 1000, "central": ["127.0.0.1:2"]}
    assert getattr(TierSettings.of({**NODES, **given, owner: there[owner]}), name) == given[name]


def test_what_changes_is_checked_alike_and_changes_nothing() -> None:
    tier = RemoteTier(TierSettings.of(NODES))
    for changes in ({"codec": ["int8"]}, {"level": "2"}, {"recompute_chunks_per_s": "8"}):
        with pytest.raises(ValueError, match=next(iter(changes))):
            tier.change(changes)
    assert tier.settings == TierSettings.of(NODES)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.001)


async def test_a_file_that_cannot_be_taken_is_told_once_and_taken_once_it_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("kv_tiers.store.settings.POLL_S", 0.001)
    file, taken = tmp_path / "settings.json", list[object]()
    following = asyncio.create_task(follow(file, taken.append))
    await asyncio.sleep(0.1)
    assert len(caplog.records) == 1
    assert "No such file" in caplog.text
    file.write_text("[" * 100_000)
    await until(lambda: "recursion" in caplog.text)
    file.write_text('{"codec": "int8"}')
    await until(lambda: bool(taken))
    following.cancel()
    assert taken == [{"codec": "int8"}]


async def test_a_link_that_brings_nothing_is_not_worth_waiting_for() -> None:
    tier = RemoteTier(TierSettings.of({**NODES, "recompute_chunks_per_s": 10}))
    tier._learn(0, 0.01)
    assert tier.load_chunks_per_s is None, "nothing was there"
    tier._learn(50, 1.0)
    assert tier._is_worth_loading()
    for _ in range(8):
        tier._learn(0, 5.0)
    answers = [tier._is_worth_loading() for _ in range(2 * PROBE_EVERY)]
    assert sum(answers) == 2


async def test_no_chunk_is_put_once_a_store_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    tier, put = RemoteTier(TierSettings.of({**NODES, "at_once": 1})), []

    async def keep(name: StoreKey, frame: bytes, *_: object) -> int:
        put.append(name.key)
        return 1

    def frame(_: Any, chunk: RawChunk, key: bytes) -> bytes:
        if key == b"1":
            raise MemoryError
        return bytes(chunk.content)

    monkeypatch.setattr(tier._frames, "put", keep)
    monkeypatch.setattr("kv_tiers.store.coder.ChunkCoder.frame", frame)
    keys = [str(number).encode() for number in range(8)]
    chunks = [RawChunk(b"x" * 8, "bfloat16", (8,)) for _ in keys]
    with pytest.raises(ExceptionGroup):
        await tier.store(keys, chunks)
    await asyncio.sleep(0.05)
    assert put == [b"0"]


class SlowNodes:
    """What nodes hold behind a link that takes so long for each chunk."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, store: ShardedStore, chunk_s: float
    ) -> None:
        self.frames: dict[bytes, bytes] = {}
        self._chunk_s = chunk_s
        for name in ("put", "get", "known", "note"):
            monkeypatch.setattr(store, name, getattr(self, name))

    async def put(self, name: StoreKey, frame: bytes) -> int:
        self.frames[name.wire] = frame
        return 1

    async def get(self, name: StoreKey) -> bytes | None:
        await asyncio.sleep(self._chunk_s)
        return self.frames.get(name.wire)

    async def known(self, names: Sequence[StoreKey]) -> list[bool | None]:
        return [name.wire in self.frames for name in names]

    async def note(self, entry: bytes) -> bool:
        return True


NEAR, FAR = [[f"{where} {at}".encode() for at in range(4)] for where in ("near", "far")]
AGAIN = [f"far too {at}".encode() for at in range(4)]
LIKE = [RawChunk(bytes(4096), "bfloat16", (2, 16, 64))] * 4
SLOW = {**NODES, "at_once": 1, "recompute_chunks_per_s": 100}


async def load(tier: RemoteTier, keys: Sequence[bytes]) -> int:
    found: list[int] = []
    await tier.load(keys, LIKE, lambda at, _: found.append(at))
    return len(found)


@pytest.mark.parametrize("codec", ["raw", "adaptive"])
@pytest.mark.parametrize("before", ["memory", "region"])
async def test_only_what_comes_from_afar_teaches_how_fast_that_is(
    before: str, codec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    more = {"near_bytes": 1_000_000} if before == "memory" else {"central": ["127.0.0.1:2"]}
    tier = RemoteTier(TierSettings.of({**SLOW, "codec": codec, **more}))
    if before == "region":
        SlowNodes(monkeypatch, tier._stores[0], 0.0)
    far = SlowNodes(monkeypatch, tier._stores[-1], 0.05)
    other = RemoteTier(TierSettings.of({**SLOW, "codec": codec}))
    monkeypatch.setattr(other, "_frames", tier._stores[-1])
    await other.store(FAR, LIKE)
    await other.store(AGAIN, LIKE)
    await tier.store(NEAR, LIKE)
    assert far.frames
    for _ in range(3):
        assert await tier.lookup([NEAR]) == [4]
        assert await load(tier, NEAR) == 4
    assert tier.status()["load_chunks_per_s"] is tier.status()["load_bytes_per_s"] is None
    assert await tier.lookup([FAR]) == [4], "nothing is known of the link"
    assert await load(tier, FAR) == 4
    assert 0 < (tier.load_chunks_per_s or 0) < 100
    mixed = [*NEAR[:2], *AGAIN[:2]]
    assert await tier.lookup([NEAR, AGAIN, mixed]) == [4, 0, 2], "computing is faster than the link"
    assert await tier.there(mixed) == [True, True, False, False]


async def test_what_only_lossless_can_code_is_kept_by_an_adaptive_tier_too(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tier = RemoteTier(TierSettings.of({**NODES, "codec": "adaptive"}))
    nodes = SlowNodes(monkeypatch, tier._store, 0.0)
    halves = [RawChunk(bytes([at]) * 4096, "float16", (2, 16, 64)) for at in range(4)]
    assert all(await tier.store(NEAR, halves))
    assert len(nodes.frames) == len(NEAR)
    assert len(caplog.records) == 1, "and not one for each chunk and level"
    found: dict[int, bytes] = {}
    await tier.load(NEAR, halves, lambda at, got: found.update({at: got.tobytes()}))
    assert found == {at: each.content for at, each in enumerate(halves)}
