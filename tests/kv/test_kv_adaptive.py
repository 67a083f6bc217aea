"""Chunks of several levels over links that are fast, slow and change: which come, and by when."""

import asyncio
from collections.abc import Collection
from typing import Any

import numpy as np
import pytest

from kv_tiers.codecs import to_bits
from kv_tiers.link import SCHEDULERS, LinkProxy, LinkSettings, RateSchedule, TokenBucket
from kv_tiers.store import valkey_server
from kv_tiers.store.adaptive import FIRST_SHARES, LEVELS, AdaptiveLoader, level_key
from kv_tiers.store.coder import ChunkCoder, RawChunk
from kv_tiers.store.nodes import split_address
from kv_tiers.store.settings import TierSettings
from kv_tiers.store.tier import RemoteTier

SIZE, CHUNKS = 1_000_000, 8
FINE, MIDDLE, COARSE = range(3)


class SimulatedLink:
    """A clock that goes on by what is fetched, and what came until when."""

    def __init__(self, *rates: tuple[float, float], known_bytes_per_s: float | None = None) -> None:
        """`rates` are second and Mbit/s."""
        seconds, mbit = zip(*rates, strict=True)
        self._bucket = TokenBucket(RateSchedule(seconds, tuple(125_000 * each for each in mbit)))
        self._now_s = 0.0
        self.came: list[tuple[int, int]] = []
        """Chunk and level."""
        self.seconds: list[float] = []
        self.asked: list[tuple[int, int]] = []
        self.missing: set[tuple[int, int]] = set()
        self.loader = AdaptiveLoader(lambda: self._now_s)
        self.loader.bytes_per_s = known_bytes_per_s

    async def load(
        self, deadline_s: float, chunks: int = CHUNKS, near: Collection[int] = ()
    ) -> list[int]:
        """Levels of what came."""

        async def fetch(at: int, level: int) -> bytes | None:
            self.asked.append((at, level))
            if (at, level) in self.missing:
                return None
            frame = bytes(round(FIRST_SHARES[level] * SIZE))
            self._now_s = self._bucket.send(self._now_s, len(frame))
            self.seconds.append(self._now_s)
            return frame

        async def decode(at: int, level: int, frame: bytes) -> None:
            self.came.append((at, level))

        await self.loader.load([SIZE] * chunks, fetch, decode, deadline_s, near)
        assert self.came == sorted(self.came)
        return [level for _, level in self.came]


def chunk_s(level: int, mbit: float) -> float:
    return FIRST_SHARES[level] * SIZE / (125_000 * mbit)


@pytest.mark.parametrize(
    ("mbit", "wanted"),
    [
        (1000, [MIDDLE] + [FINE] * 7),
        (60, [MIDDLE] + [FINE] * 7),
        (39.2, [MIDDLE] * 8),
        (22.4, [MIDDLE] + [COARSE] * 7),
    ],
)
async def test_a_steady_link_gives_the_finest_level_that_all_chunks_have_time_for(
    mbit: float, wanted: list[int]
) -> None:
    link = SimulatedLink((0, mbit))
    found = await link.load(deadline_s=1.05)
    assert found == wanted
    assert link.seconds[-1] <= 1.05


async def test_the_second_load_begins_with_what_the_first_has_learned() -> None:
    link = SimulatedLink((0, 1000))
    await link.load(deadline_s=1.0)
    link.came.clear()
    assert await link.load(deadline_s=1.0) == [FINE] * CHUNKS


async def test_a_link_that_falls_is_answered_with_coarser_chunks_and_then_none() -> None:
    fall_s = chunk_s(MIDDLE, 100) + 2.5 * chunk_s(FINE, 100)
    link = SimulatedLink((0, 100), (fall_s, 30), (fall_s + 0.3, 2))
    found = await link.load(deadline_s=0.76)
    assert found == [MIDDLE, FINE, FINE, FINE, MIDDLE, COARSE], "and the rest is computed"
    assert sum(second > 0.76 for second in link.seconds) == 1, (
        "of a chunk that was on its way the tier's own deadline takes care"
    )
    assert len(link.asked) == len(found), "and nothing was asked for in vain"


async def test_a_link_that_rises_is_answered_with_finer_chunks() -> None:
    link = SimulatedLink((0, 15), (0.3, 1000))
    found = await link.load(deadline_s=1.2)
    assert found[:2] == [MIDDLE, COARSE]
    assert found[-1] == FINE
    assert len(found) == CHUNKS


async def test_over_a_link_known_to_be_too_slow_one_chunk_is_tried() -> None:
    link = SimulatedLink((0, 1000), known_bytes_per_s=1.0)
    assert await link.load(deadline_s=1.0) == [COARSE] + [FINE] * 7, "it has become faster"
    slow = SimulatedLink((0, 0.1), known_bytes_per_s=1.0)
    assert await slow.load(deadline_s=1.0) == [COARSE]


async def test_a_level_that_is_gone_is_had_as_the_finest_and_a_chunk_that_is_gone_not() -> None:
    link = SimulatedLink((0, 25))
    link.missing = {(0, MIDDLE), (2, COARSE), (2, FINE)}
    await link.load(deadline_s=1.4)
    assert link.asked[:2] == [(0, MIDDLE), (0, FINE)]
    assert [at for at, _ in link.came] == [0, 1, *range(3, CHUNKS)]


async def test_a_slow_load_asks_for_each_level_that_is_not_kept_once_and_ends_in_time() -> None:
    link = SimulatedLink((0, 15))
    link.missing = {(at, level) for at in range(CHUNKS) for level in (MIDDLE, COARSE)}
    ended_s = 0.0
    for asked in ([MIDDLE, FINE, COARSE, FINE, FINE], [COARSE, FINE, MIDDLE, FINE, FINE]):
        link.came.clear()
        link.asked.clear()
        assert await link.load(deadline_s=1.3) == [FINE] * 3
        assert [level for _, level in link.asked] == asked
        assert link.seconds[-1] - ended_s <= 1.3
        ended_s = link.seconds[-1]


async def test_a_level_that_is_not_kept_is_asked_for_once_where_all_chunks_are_near() -> None:
    link = SimulatedLink((0, 15))
    link.missing = {(at, MIDDLE) for at in range(CHUNKS)}
    assert await link.load(deadline_s=1.3, near=range(CHUNKS)) == [FINE] * CHUNKS
    assert link.asked.count((0, MIDDLE)) == len(link.asked) - CHUNKS == 1


SHAPE = (2, 16, 512)
KEYS = [b"prefix %d" % at for at in range(6)]


def raw(seed: int) -> RawChunk:
    values = np.random.default_rng(seed).normal(size=SHAPE).astype(np.float32)
    return RawChunk(to_bits(values).tobytes(), "bfloat16", SHAPE)


RAW = [raw(at) for at in range(len(KEYS))]
DECODED = {
    (at, level): ChunkCoder(name).content(ChunkCoder(name).frame(chunk, b"key"), b"key", chunk)
    for at, chunk in enumerate(RAW)
    for level, name in enumerate(LEVELS)
}


async def loaded(tier: RemoteTier) -> dict[int, bytes]:
    found: dict[int, bytes] = {}
    await tier.load(KEYS, RAW, lambda at, content: found.update({at: content.tobytes()}))
    return found


def levels(found: dict[int, bytes]) -> list[int]:
    """Of each chunk the level whose decoding it is."""
    by_content = {(at, DECODED[at, level].tobytes()): level for at, level in DECODED}
    return [by_content[at, content] for at, content in sorted(found.items())]


@pytest.mark.parametrize(
    ("mbit", "deadline_s", "possible"),
    [
        (None, 20.0, {(FINE,) * 6}),  # no link at all
        (4, 20.0, {(FINE,) * 6}),
        (1, 0.75, {(MIDDLE, *(COARSE,) * some) for some in range(6)}),
        (0.2, 1.3, {(), (MIDDLE,), (MIDDLE, COARSE)}),
    ],
)
async def test_a_tier_loads_what_its_link_has_time_for(
    mbit: float | None, deadline_s: float, possible: set[tuple[int, ...]]
) -> None:
    """Six chunks of 33 kB, which take 1.2 s at 1 Mbit/s at their finest and 0.5 s coarse."""
    async with valkey_server() as (address, _):
        near = tier_settings(address)
        async with RemoteTier(near) as tier:
            assert min(await tier.store(KEYS, RAW)) > len(RAW[0].content), "all levels of each"
            assert await tier.lookup([KEYS]) == [len(KEYS)]
        rate = RateSchedule.fixed(mbit or 10_000)
        link = LinkSettings(rate, SCHEDULERS["fifo"])
        async with LinkProxy(link, [0], *split_address(address)) as proxy:
            through = f"127.0.0.1:{proxy.ports[0]}"
            given = tier_settings(through, load_deadline_s=deadline_s, node_deadline_s=30.0)
            async with RemoteTier(given) as tier:
                if mbit is None or deadline_s > 10:
                    assert levels(await loaded(tier)) == [MIDDLE, *(FINE,) * 5]
                begun_s = asyncio.get_running_loop().time()
                found = await loaded(tier)
                took_s = asyncio.get_running_loop().time() - begun_s
                assert tuple(levels(found)) in possible
                assert tier.status()["adaptive_chunks"]["int4"] >= levels(found).count(COARSE)
                assert took_s < deadline_s + 5.0


def tier_settings(address: str, **more: Any) -> TierSettings:
    return TierSettings.of({"nodes": [address], "codec": "adaptive", **more})


async def test_who_has_one_codec_and_who_has_levels_read_each_others_chunks() -> None:
    async with valkey_server() as (address, _):
        plain = TierSettings.of({"nodes": [address], "codec": "lossless"})
        async with RemoteTier(tier_settings(address)) as adaptive, RemoteTier(plain) as one:
            await adaptive.store(KEYS[:3], RAW[:3])
            await one.store(KEYS[3:], RAW[3:])
            for tier in (adaptive, one):
                assert await tier.lookup([KEYS]) == [len(KEYS)]
                found = await loaded(tier)
                assert levels(found)[1:] == [FINE] * 5
            adaptive.change({"codec": "int4"})
            assert len(await loaded(adaptive)) == len(KEYS)


def test_levels_have_names_of_their_own() -> None:
    names = {level_key(key, level) for key in KEYS for level in range(len(LEVELS))}
    assert len(names) == len(KEYS) * len(LEVELS)
    assert level_key(KEYS[0], FINE) == KEYS[0]
