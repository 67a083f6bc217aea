"""What a tier on nodes is told, what it learns of its links, and what becomes of a broken store."""

import asyncio
from typing import Any

import pytest

from kv_tiers.store.coder import RawChunk
from kv_tiers.store.placement import StoreKey
from kv_tiers.store.tier import PROBE_EVERY, RemoteTier, TierSettings

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


def test_what_changes_is_checked_alike_and_changes_nothing() -> None:
    tier = RemoteTier(TierSettings.of(NODES))
    for changes in ({"codec": ["int8"]}, {"level": "2"}, {"recompute_chunks_per_s": "8"}):
        with pytest.raises(ValueError, match=next(iter(changes))):
            tier.change(changes)
    assert tier.settings == TierSettings.of(NODES)


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
