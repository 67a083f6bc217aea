"""Chunks of an engine's KV as frames: each type and shape comes back as it was, or near."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kv_tiers.codecs import CacheGenProfile, FrameError, from_bits, pack, to_bits
from kv_tiers.store.coder import CODEC_NAMES, ChunkCoder, RawChunk

KEY = b"key"
EXACT, LOSSY = ("raw", "lossless"), ("int8", "int4")
SHAPES = {"packed": (3, 64, 128), "planes": (2, 3, 64, 64)}


def chunk(dtype: str, shape: tuple[int, ...], seed: int = 0) -> RawChunk:
    values = np.random.default_rng(seed).normal(size=shape).astype(np.float32)
    content = values.tobytes() if dtype == "float32" else to_bits(values).tobytes()
    return RawChunk(content, dtype, shape)


def floats(content: bytes | memoryview, dtype: str) -> np.ndarray:
    if dtype == "float32":
        return np.frombuffer(content, dtype=np.float32)
    return from_bits(np.frombuffer(content, dtype=np.uint16))


@pytest.mark.parametrize("codec", [*EXACT, *LOSSY])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("shape", SHAPES)
def test_what_comes_back(codec: str, dtype: str, shape: str) -> None:
    given = chunk(dtype, SHAPES[shape])
    frame = ChunkCoder(codec).frame(given, KEY)
    found = ChunkCoder("raw").content(frame, KEY, given).tobytes()
    assert len(found) == len(given.content)
    if codec in EXACT:
        assert found == given.content
        return
    off = floats(found, dtype) - floats(given.content, dtype)
    assert 0 < off.std() < (0.02 if codec == "int8" else 0.15)
    assert len(frame) < len(given.content) * (0.6 if codec == "int8" else 0.35)


@pytest.mark.parametrize("codec", EXACT)
@pytest.mark.parametrize("size", [0, 1, 2, 3, 4, 5, 1023])
def test_bytes_of_any_length_in_a_larger_buffer(codec: str, size: int) -> None:
    content = np.random.default_rng(size).bytes(size)
    frame = ChunkCoder(codec).frame(RawChunk(content, "uint8", (size,)), KEY)
    buffer = RawChunk(bytes(1100), "uint8", (1100,))
    assert ChunkCoder().content(frame, KEY, buffer).tobytes() == content
    if size:
        with pytest.raises(FrameError, match=f"for a buffer of {size - 1}"):
            ChunkCoder().content(frame, KEY, RawChunk(bytes(size - 1), "uint8", (size - 1,)))


def test_what_a_codec_cannot_take_is_told() -> None:
    halves = RawChunk(bytes(4096), "float16", (2, 16, 64))
    with pytest.raises(ValueError, match="int8 takes no KV in float16: use lossless"):
        ChunkCoder("int8").frame(halves, KEY)
    with pytest.raises(ValueError, match=r"int4 takes no chunk of shape \(4096,\)"):
        ChunkCoder("int4").frame(RawChunk(bytes(4096), "bfloat16", (4096,)), KEY)
    with pytest.raises(ValueError, match=f"choose one of {', '.join(CODEC_NAMES)}"):
        ChunkCoder("int5")
    with pytest.raises(ValueError, match="needs the profile of a model"):
        ChunkCoder("cachegen")


def test_a_frame_of_another_size_is_no_chunk() -> None:
    frame = ChunkCoder("int8").frame(chunk("bfloat16", (3, 64, 32)), KEY)
    for shape in ((3, 64, 64), (2, 64, 32), (2, 3, 64, 8)):
        with pytest.raises(FrameError, match="for a buffer of"):
            ChunkCoder().content(frame, KEY, chunk("bfloat16", shape))
    bytes_of_any = RawChunk(bytes(100), "uint8", (100,))
    zeros = np.zeros((1, 2, 1, 4), dtype=np.uint16)
    text = pack(ChunkCoder()._codec, zeros, KEY, bytes_of_any.layout)
    with pytest.raises(FrameError, match="no end"):
        ChunkCoder().content(text, KEY, bytes_of_any)


def test_cachegen_with_the_profile_of_a_model(tmp_path: Path) -> None:
    given = chunk("bfloat16", SHAPES["planes"])
    bits = np.frombuffer(given.content, dtype=np.uint16).reshape(SHAPES["planes"])
    profile = CacheGenProfile.fitted([np.ascontiguousarray(bits.transpose(1, 0, 2, 3))])
    profile.write(tmp_path / "profile.json")
    fine, coarse = (ChunkCoder("cachegen", level, tmp_path / "profile.json") for level in (0, 4))
    sizes = [len(coder.frame(given, KEY)) for coder in (fine, coarse)]
    assert sizes[1] < sizes[0] < len(given.content) / 2
    found = fine.content(coarse.frame(given, KEY), KEY, given).tobytes()
    off = floats(found, "bfloat16") - floats(given.content, "bfloat16")
    assert 0 < off.std() < 0.6
    with pytest.raises(FrameError, match="codec 4 is not known"):
        ChunkCoder("int8").content(fine.frame(given, KEY), KEY, given)
    wider = CacheGenProfile(profile.deltas, profile.mean, 2 * profile.spread, profile.most)
    wider.write(tmp_path / "other.json")
    other = ChunkCoder("cachegen", 0, tmp_path / "other.json")
    with pytest.raises(FrameError, match="of another profile"):
        other.content(fine.frame(given, KEY), KEY, given)


@pytest.mark.parametrize("codec", EXACT)
@pytest.mark.parametrize("change", [{"dtype": "float16"}, {"machine": "x86_64-avx512-amx"}])
def test_bytes_that_mean_something_else_are_no_chunk(codec: str, change: dict[str, str]) -> None:
    given = replace(chunk("bfloat16", SHAPES["packed"]), machine="x86_64-avx2")
    frame = ChunkCoder(codec).frame(given, KEY)
    assert ChunkCoder().content(frame, KEY, given).tobytes() == given.content
    with pytest.raises(FrameError, match="laid out otherwise"):
        ChunkCoder().content(frame, KEY, replace(given, **change))


@pytest.mark.parametrize("codec", EXACT)
def test_bytes_whose_shape_is_known_are_no_chunk_where_it_is_not(codec: str) -> None:
    content = bytes(4095) + b"\x01"
    given = RawChunk(content, "bfloat16", (2, 16, 64))
    flat = RawChunk(content, "bfloat16", (len(content),))
    for one, other in ((given, flat), (flat, given)):
        frame = ChunkCoder(codec).frame(one, KEY)
        with pytest.raises(FrameError, match="laid out otherwise"):
            ChunkCoder().content(frame, KEY, other)


def test_the_store_and_the_link_need_no_engine() -> None:
    code = (
        "import sys, kv_tiers.link, kv_tiers.store.tier;"
        "print({'lmcache', 'vllm', 'torch', 'loadgen'} & {*sys.modules})"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout == "set()\n"
