"""Decoding is exact for every packing, and the self-test finds the packing or refuses."""

from pathlib import Path

import numpy as np
import pytest
from packed_chunks import PLACES, as_bfloat16, by_head, packed, planes, random_kv

from kv_reading import KvError
from kv_reading.kv import Kv, KvShape, joined
from kv_reading.layout import PLANES, Layout, decode, find_layout
from kv_tiers.codecs import CacheGenProfile, from_bits, to_bits
from kv_tiers.store.coder import ChunkCoder, RawChunk

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


def channelled_kv(tokens: int, seed: int) -> Kv:
    """Of channels that differ, as those of a trained model do."""
    means, rng = np.random.default_rng(99), np.random.default_rng(seed)
    shape = (SHAPE.layers, SHAPE.heads, tokens, SHAPE.head_dim)
    keys, values = (
        means.normal(size=(SHAPE.layers, SHAPE.heads, 1, SHAPE.head_dim)) * size
        + rng.normal(size=shape) * 0.1
        for size in (3, 0.5)
    )
    return Kv(keys.astype(np.float32), values.astype(np.float32))


def plain_bits(kv: Kv) -> np.ndarray:
    """[layers, 2, tokens, channels]."""
    return np.ascontiguousarray(to_bits(planes(kv)).swapaxes(0, 1))


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    chunks = [plain_bits(channelled_kv(256, seed)) for seed in (1, 2)]
    file = tmp_path / "cachegen.json"
    CacheGenProfile.fitted(chunks, heads=SHAPE.heads).write(file)
    return file


@pytest.mark.parametrize("block_tokens", [32, 64])
@pytest.mark.parametrize("packing", list(PLACES))
def test_cachegen_codes_packed_kv_as_it_does_kv_in_plain_order(
    packing: str, block_tokens: int, profile: Path
) -> None:
    kv, key = channelled_kv(CHUNK_TOKENS, 3), b"key"
    content = packed(kv, packing, block_tokens)
    lying = RawChunk(as_bfloat16(content), "bfloat16", content.shape, "here")
    plain = RawChunk(as_bfloat16(planes(kv)), "bfloat16", planes(kv).shape)
    writer, reader = ChunkCoder("cachegen", 1, profile), ChunkCoder("raw", profile=profile)
    frame, known = writer.frame(lying, key), writer.frame(plain, key)
    assert len(frame) == len(known)
    empty = RawChunk(bytes(len(lying.content)), "bfloat16", content.shape, "here")
    found = from_bits(reader.content(frame, key, empty).view(np.uint16))
    back = decode(as_bfloat16(found), SHAPE, Layout(packing, "bfloat16", block_tokens))
    wanted = decode(
        writer.content(known, key, plain).tobytes(), SHAPE, Layout(PLANES, "bfloat16", CHUNK_TOKENS)
    )
    assert same(back, wanted)
    assert 0 < np.abs(back.keys - kv.keys).max() < 0.2


@pytest.mark.parametrize("packing", list(PLACES))
def test_cachegen_finds_a_block_that_lies_head_by_head(packing: str, profile: Path) -> None:
    """As vLLM's own offload copies it."""
    kv = channelled_kv(CHUNK_TOKENS, 3)
    assert found_again(by_head(kv, packing).reshape(SHAPE.layers, CHUNK_TOKENS, -1), profile) < 0.2


@pytest.mark.parametrize("order", ["by token", "by head"])
def test_cachegen_finds_keys_beside_their_values(order: str, profile: Path) -> None:
    """As kernels of GPUs have them."""
    kv = channelled_kv(CHUNK_TOKENS, 3)
    pairs = np.stack((kv.keys, kv.values), axis=3)  # layers, heads, tokens, 2, dim
    if order == "by token":
        pairs = pairs.swapaxes(1, 2)
    assert found_again(pairs.reshape(SHAPE.layers, CHUNK_TOKENS, -1), profile) < 0.2


def found_again(values: np.ndarray, profile: Path) -> float:
    """How far the worst of them is off."""
    chunk = RawChunk(as_bfloat16(values), "bfloat16", values.shape)
    coder = ChunkCoder("cachegen", 1, profile)
    found = coder.content(coder.frame(chunk, b"key"), b"key", chunk).view(np.uint16)
    off = np.abs(from_bits(found) - values.reshape(-1)).max()
    assert off > 0
    return float(off)


def test_cachegen_refuses_kv_that_its_profile_does_not_fit(profile: Path) -> None:
    coder = ChunkCoder("cachegen", 1, profile)
    content = packed(random_kv(2, 2, CHUNK_TOKENS, 32), "vec", 64)
    with pytest.raises(ValueError, match="in no known order"):
        coder.frame(RawChunk(as_bfloat16(content), "bfloat16", content.shape), b"key")
    other = packed(random_kv(3, 2, CHUNK_TOKENS, 32), "vec", 64)
    with pytest.raises(ValueError, match="of 2 layers and 64 channels does not fit chunks of 3"):
        coder.frame(RawChunk(as_bfloat16(other), "bfloat16", other.shape), b"key")
