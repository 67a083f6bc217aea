"""Decoding is exact for every packing, and the self-test finds the packing or refuses."""

import numpy as np
import pytest
from packed_chunks import PLACES, as_bfloat16, packed, planes, random_kv

from kv_reading import KvError
from kv_reading.kv import Kv, KvShape, joined
from kv_reading.layout import PLANES, Layout, decode, find_layout

SHAPE = KvShape(layers=2, heads=2, head_dim=32)
CHUNK_TOKENS = 64


def same(one: Kv, other: Kv) -> bool:
    return np.array_equal(one.keys, other.keys) and np.array_equal(one.values, other.values)


@pytest.mark.parametrize("block_tokens", [32, 64])
@pytest.mark.parametrize("packing", list(PLACES))
def test_every_value_of_a_packed_chunk_comes_back(packing: str, block_tokens: int) -> None:
    kv = random_kv(2, 2, CHUNK_TOKENS, 32)
    content = packed(kv, packing, block_tokens)
    layout = Layout(packing, "bfloat16", block_tokens)
    assert same(decode(as_bfloat16(content), SHAPE, layout), kv)
    wide = decode(content.tobytes(), SHAPE, Layout(packing, "float32", block_tokens))
    assert same(wide, kv)


def test_planes_come_back() -> None:
    kv = random_kv(2, 2, CHUNK_TOKENS, 32)
    content = planes(kv).astype("<f2").tobytes()
    assert same(decode(content, SHAPE, Layout(PLANES, "float16", CHUNK_TOKENS)), kv)


@pytest.mark.parametrize(("packing", "block_tokens"), [("amx", 64), ("amx", 32), ("vec", 64)])
def test_the_self_test_finds_the_packing(packing: str, block_tokens: int) -> None:
    parts = [random_kv(2, 2, CHUNK_TOKENS, 32, seed) for seed in (1, 2)]
    contents = [as_bfloat16(packed(part, packing, block_tokens)) for part in parts]
    layout, cosine = find_layout(contents, joined(parts), SHAPE, CHUNK_TOKENS)
    assert layout == Layout(packing, "bfloat16", block_tokens)
    assert cosine == pytest.approx(1)


def test_an_unknown_packing_is_refused() -> None:
    kv = random_kv(2, 2, CHUNK_TOKENS, 32)
    backwards = Kv(kv.keys[:, :, ::-1], kv.values)
    content = as_bfloat16(packed(backwards, "amx", 64))
    with pytest.raises(KvError, match="no known layout"):
        find_layout([content], kv, SHAPE, CHUNK_TOKENS)


def test_chunks_of_another_model_are_refused() -> None:
    kv = random_kv(2, 2, CHUNK_TOKENS, 32)
    with pytest.raises(KvError, match="name the model that was served"):
        find_layout([bytes(1000)], kv, SHAPE, CHUNK_TOKENS)


def test_values_that_are_no_numbers_are_refused() -> None:
    kv = random_kv(2, 2, CHUNK_TOKENS, 32)
    content = np.full(SHAPE.values_per_token * CHUNK_TOKENS, np.nan, "<f4").tobytes()
    with pytest.raises(KvError, match="no known layout"):
        find_layout([content], kv, SHAPE, CHUNK_TOKENS)
