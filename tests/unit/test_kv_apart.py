"""Anchors and deltas of a CacheGen chunk apart, reunited in any order."""

import random
from collections.abc import Callable

import numpy as np
import pytest

from kv_tiers.codecs import Bits, CacheGen, CacheGenProfile, FrameError, pack, to_bits, unpack
from kv_tiers.codecs.apart import ANCHOR, PartId, PartReassembly, split
from kv_tiers.codecs.cachegen import GROUP

LAYERS, TOKENS, CHANNELS = 3, 50, 8
KEY = b"a digest of tokens"


def chunk(seed: int, tokens: int = TOKENS) -> Bits:
    """Keys that change little from token to token, values that do not: deltas pay for keys."""
    rng = np.random.default_rng(seed)
    walk = rng.normal(size=(LAYERS, tokens, CHANNELS)).cumsum(axis=1) * 0.1
    values = rng.normal(size=(LAYERS, tokens, CHANNELS))
    return to_bits(np.stack((walk, values), axis=1).astype(np.float32))


def codec_of(deltas: bool | None) -> CacheGen:
    return CacheGen(CacheGenProfile.fitted([chunk(1, 200), chunk(2, 200)], deltas=deltas), 1)


CODEC = codec_of(None)
ORDERS: dict[str, Callable[[list[PartId]], list[PartId]]] = {
    "group by group": lambda parts: parts,
    "anchors first": lambda parts: sorted(parts, key=lambda part: part.position != ANCHOR),
    "anchors last": lambda parts: sorted(parts, key=lambda part: part.position == ANCHOR),
    "any": lambda parts: random.Random(3).sample(parts, len(parts)),
}


def reassembly(tokens: int = TOKENS, codec: CacheGen = CODEC, key: bytes = KEY) -> PartReassembly:
    return PartReassembly(codec, (LAYERS, 2, tokens, CHANNELS), key)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("deltas", [None, True, False])
@pytest.mark.parametrize("tokens", [1, 3, 4, 5, 16, 17, TOKENS])
def test_in_any_order_parts_give_what_a_whole_frame_gives(
    order: str, deltas: bool | None, tokens: int
) -> None:
    codec, bits = codec_of(deltas), chunk(5, tokens)
    parts = split(codec, bits, KEY)
    met = reassembly(tokens, codec)
    seen = []
    for part in ORDERS[order]([*parts]):
        met.add(parts[part])
        seen.append(met.usable_tokens)
        assert met.bits.shape[2] == seen[-1]
    assert seen == sorted(seen)
    assert seen[-1] == tokens
    whole = unpack(pack(codec, bits, KEY), KEY, {CacheGen.number: lambda _: codec})
    np.testing.assert_array_equal(met.bits, whole)


def usable(order: str) -> list[int]:
    """After each part."""
    parts, met, found = split(CODEC, chunk(5), KEY), reassembly(), []
    for part in ORDERS[order]([*parts]):
        met.add(parts[part])
        found.append(met.usable_tokens)
    return found


def test_a_token_is_usable_once_its_anchor_and_its_own_part_are_there() -> None:
    beside, first, last = map(usable, ("group by group", "anchors first", "anchors last"))
    assert beside == [4, *range(5, TOKENS + 1)], "four come as they are with the first anchor"
    groups = -(-TOKENS // GROUP)
    assert first[:groups] == [4] * groups
    assert first[groups] == 5
    assert last[: TOKENS - GROUP // 4 - groups] == [0] * (TOKENS - GROUP // 4 - groups)
    assert last[-groups:] == [16, 32, 48, 50]


def test_what_is_not_of_this_chunk_or_not_whole_is_refused() -> None:
    parts = split(CODEC, chunk(5), KEY)
    each = parts[PartId.of(KEY, 1, 2)]
    for broken in (each[:-1], each[:10], each[:-4] + b"none", bytes([each[0] ^ 1]) + each[1:]):
        with pytest.raises(FrameError):
            reassembly().add(broken)
    with pytest.raises(FrameError, match="another chunk"):
        reassembly(key=b"other").add(each)
    with pytest.raises(FrameError, match="another chunk"):
        reassembly(tokens=GROUP).add(each)


def test_several_parts_come_as_one() -> None:
    parts, met = split(CODEC, chunk(5), KEY), reassembly()
    met.add(b"".join(parts.values()))
    assert met.usable_tokens == TOKENS
