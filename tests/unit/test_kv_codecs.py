"""Codecs of KV chunks: what comes back, how far off, in how many bytes; damaged frames."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from tiny_llama import write_tiny_llama

from kv_tiers.codecs import (
    CODECS,
    Bits,
    CacheGen,
    CacheGenProfile,
    FrameError,
    KvCodec,
    from_bits,
    pack,
    to_bits,
    unpack,
)
from loadgen.cli.main import main

LAYERS, TOKENS, CHANNELS = 3, 50, 32
KEY = b"a digest of tokens"


def chunk(tokens: int = TOKENS, seed: int = 0) -> Bits:
    """Keys that change little from token to token around means of their channels, one of them an
    outlier; values that do not."""
    rng = np.random.default_rng(seed)
    walk = rng.normal(size=(LAYERS, tokens, CHANNELS)).cumsum(axis=1) * 0.1
    means = np.random.default_rng(9).normal(size=(LAYERS, 1, CHANNELS))
    means[..., 3] = 30
    values = rng.normal(size=(LAYERS, tokens, CHANNELS)) * 0.5
    return to_bits(np.stack((walk + means, values), axis=1).astype(np.float32))


PROFILE = CacheGenProfile.fitted([chunk(200, seed) for seed in range(1, 4)])
ALL: dict[str, KvCodec] = {
    **{name: make() for name, make in CODECS.items()},
    **{f"cachegen-{level}": CacheGen(PROFILE, level) for level in (0, 2, 4)},
}
OTHERS = {CacheGen.number: lambda level: CacheGen(PROFILE, level)}


def back(codec: KvCodec, bits: Bits) -> Bits:
    return unpack(pack(codec, bits, KEY), KEY, OTHERS | {CacheGen.number: lambda _: codec})


def off(codec: KvCodec, bits: Bits) -> tuple[float, float]:
    """Root mean square errors of keys and values, over the spread of each channel."""
    wanted, found = from_bits(bits), from_bits(back(codec, bits))
    spread = wanted.std(axis=2, keepdims=True)
    shares = np.sqrt((((found - wanted) / spread) ** 2).mean(axis=(0, 2, 3)))
    return float(shares[0]), float(shares[1])


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("tokens", [0, 1, 15, 16, 17, TOKENS])
def test_a_chunk_of_any_length_comes_back_in_its_shape(name: str, tokens: int) -> None:
    bits = chunk(tokens)
    found = back(ALL[name], bits)
    assert found.shape == bits.shape
    assert found.dtype == np.uint16
    if ALL[name].is_exact:
        assert (found == bits).all()


@pytest.mark.parametrize(
    ("name", "keys", "values"),
    [
        ("int8", 0.02, 0.02),
        ("int4", 0.12, 0.12),
        ("cachegen-0", 0.1, 0.1),
        ("cachegen-4", 0.6, 0.5),
    ],
)
def test_errors_are_bounded(name: str, keys: float, values: float) -> None:
    found = off(ALL[name], chunk())
    assert 0 < found[0] <= keys
    assert 0 < found[1] <= values


def test_fewer_bytes_in_this_order() -> None:
    bits = chunk(256)
    sizes = {name: len(pack(codec, bits, KEY)) for name, codec in ALL.items()}
    order = ["raw", "lossless", "int8", "cachegen-0", "cachegen-2", "cachegen-4"]
    found = [sizes[name] for name in order]
    assert found == sorted(found, reverse=True)
    assert sizes["raw"] - bits.nbytes < 100
    assert 0.30 < sizes["int4"] / bits.nbytes < 0.34


def test_a_profile_chooses_differences_where_they_pay() -> None:
    assert PROFILE.deltas[:, 0].all()
    assert not PROFILE.deltas[:, 1].any()
    bits = chunk(128)
    size = len(CacheGen(PROFILE, 1).encode(bits))
    for forced in (True, False):
        other = CacheGenProfile.fitted([chunk(200, seed) for seed in range(1, 4)], deltas=forced)
        # At bins of the same share of a spread: what spreads less is also less far off.
        assert off(CacheGen(PROFILE, 1), bits)[0] <= off(CacheGen(other, 1), bits)[0] + 1e-6
        assert abs(len(CacheGen(other, 1).encode(bits)) - size) < size / 4


def test_a_profile_is_kept_as_it_is(tmp_path: Path) -> None:
    PROFILE.write(tmp_path / "profile.json")
    read = CacheGenProfile.read(tmp_path / "profile.json")
    bits = chunk()
    assert CacheGen(read, 2).encode(bits) == CacheGen(PROFILE, 2).encode(bits)
    with pytest.raises(ValueError, match="a chunk or more"):
        CacheGenProfile.fitted([])
    with pytest.raises(ValueError, match="give 0 to 4"):
        CacheGen(PROFILE, 5)


def test_the_first_tokens_of_a_chunk_are_exact_and_do_not_widen_the_rest() -> None:
    bits = chunk(64)
    sunk = bits.copy()
    sunk[:, :, 0] = to_bits(np.float32(1000) * np.ones((LAYERS, 2, CHANNELS), dtype=np.float32))
    codec = CacheGen(PROFILE, 1)
    found, plain = back(codec, sunk), back(codec, bits)
    assert (found[:, :, :4] == sunk[:, :, :4]).all()
    np.testing.assert_array_equal(found[:, :, 16:], plain[:, :, 16:])


@pytest.mark.parametrize("name", ALL)
def test_no_changed_byte_passes(name: str) -> None:
    frame = pack(ALL[name], chunk(20), KEY)
    rng = np.random.default_rng(1)
    places = {*range(48), *rng.integers(len(frame), size=60).tolist(), len(frame) - 1}
    for place in places:
        broken = bytearray(frame)
        broken[place] ^= 1 << int(rng.integers(8))
        if bytes(broken) == frame:
            continue
        with pytest.raises(FrameError):
            unpack(bytes(broken), KEY, OTHERS)
    for length in (0, 1, 40, len(frame) // 2, len(frame) - 1):
        with pytest.raises(FrameError):
            unpack(frame[:length], KEY, OTHERS)
    with pytest.raises(FrameError, match="bytes of"):
        unpack(frame + b"x", KEY, OTHERS)
    with pytest.raises(FrameError, match="another key"):
        unpack(frame, b"other", OTHERS)


def test_a_codec_nobody_knows_is_told() -> None:
    with pytest.raises(FrameError, match="codec 4 is not known"):
        unpack(pack(ALL["cachegen-2"], chunk(), KEY), KEY)
    with pytest.raises(ValueError, match=r"give \[layers, 2, tokens, channels\]"):
        pack(CODECS["raw"](), np.zeros((2, 3, 4), dtype=np.uint16), KEY)


def test_a_level_nobody_knows_is_no_frame_either() -> None:
    """As one of a later version: others of its load are read."""
    codec = CacheGen(PROFILE, 2)
    codec.level = 9
    with pytest.raises(FrameError, match="level 9"):
        unpack(pack(codec, chunk(), KEY), KEY, OTHERS)


@pytest.mark.parametrize("name", ALL)
def test_numbers_that_are_none_hurt_no_others(name: str) -> None:
    bits = chunk(40)
    clean = from_bits(back(ALL[name], bits))
    odd = bits.copy()
    odd[0, 0, 7, 0], odd[1, 1, 8, 5], odd[2, 0, 9, 2] = 0x7FC0, 0x7F80, 0xFF80
    found = back(ALL[name], odd)
    if ALL[name].is_exact:
        assert (found == odd).all()
        return
    assert np.isfinite(from_bits(found)).all()
    same = from_bits(found)[0, 1]
    np.testing.assert_array_equal(same, clean[0, 1])


def test_bfloat16_is_rounded_to_the_nearest() -> None:
    values = np.array([1.0, 1.00390625, 1.01171875, -3.0e38, 0.0, np.inf], dtype=np.float32)
    rounded = from_bits(to_bits(values))
    np.testing.assert_array_equal(rounded[[0, 1, 2]], [1.0, 1.0, 1.015625])
    assert np.isinf(rounded[-1])
    assert np.isnan(from_bits(to_bits(np.array([np.nan], dtype=np.float32))))[0]
    bits = np.arange(1 << 16, dtype=np.uint16)
    kept = ~np.isnan(from_bits(bits))
    assert (to_bits(from_bits(bits))[kept] == bits[kept]).all()


@pytest.mark.parametrize("name", ALL)
def test_the_same_chunk_gives_the_same_bytes(name: str) -> None:
    assert pack(ALL[name], chunk(), KEY) == pack(ALL[name], chunk(), KEY)


def test_a_trial_on_a_model_tells_bytes_errors_and_speed(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    tiny_model = write_tiny_llama(tmp_path / "model")
    (tmp_path / "texts").mkdir()
    for at in range(4):
        words = " ".join(f"word{at} number {n}" for n in range(200))
        (tmp_path / f"texts/{at}.md").write_text(words)
    words = ["--texts", "4", "--prompt-tokens", "64", "--read-tokens", "8"]
    places = ["--corpus", str(tmp_path / "texts"), "--out", str(tmp_path / "out")]
    assert main(["kv", "codecs", "--model", str(tiny_model), *words, *places]) == 0
    with (tmp_path / "out/kv-codecs.csv").open() as file:
        rows = {(row["codec"], row["deltas"]): row for row in csv.DictReader(file)}
    for name in ("raw", "lossless"):
        row = rows[name, ""]
        assert float(row["key_error"]) == float(row["value_error"]) == 0
        assert float(row["kl_nats"]) == pytest.approx(0, abs=1e-6)
        assert float(row["top1_agreement"]) == 1
    assert float(rows["int8", ""]["key_error"]) < float(rows["int4", ""]["key_error"]) < 0.2
    shares = [float(rows[f"cachegen {level}", "chosen"]["share"]) for level in range(5)]
    assert shares == sorted(shares, reverse=True)
    profile = CacheGenProfile.read(tmp_path / "out/cachegen.json")
    assert (profile.heads, *profile.mean.shape) == (2, 4, 2, 16)
    page = (tmp_path / "out/kv-codecs.md").read_text()
    told = "--model model --texts 4 --prompt-tokens 64 --read-tokens 8 --corpus texts"
    assert f"kvswarm kv codecs {told}\n" in page
    assert main(["kv", "codecs", "--model", str(tiny_model), "--texts", "1", *places]) == 2
    assert main(["kv", "codecs", "--model", str(tiny_model), "--texts", "900", *places]) == 2


def test_a_profile_comes_back_as_it_was_and_nothing_else_is_one(tmp_path: Path) -> None:
    file = tmp_path / "cachegen.json"
    CacheGenProfile.fitted([chunk(200)], heads=4).write(file)
    found = CacheGenProfile.read(file)
    assert (found.heads, found.digest) == (4, CacheGenProfile.fitted([chunk(200)]).digest)
    told = json.loads(file.read_text())
    wrong: list[object] = [
        *([], {}, 3, "no", None),
        {**told, "heads": 0},
        {**told, "heads": 5},
        {**told, "heads": -4},
        {**told, "spread": np.zeros_like(told["spread"]).tolist()},
        {**told, "most": np.full_like(told["most"], np.nan).tolist()},
        {**told, "mean": told["mean"][:1]},
        {**told, "spread": 1},
        {**told, "most": [["a"]]},
        {**told, "deltas": [[True]]},
    ]
    for each in wrong:
        file.write_text(json.dumps(each))
        with pytest.raises(ValueError, match="is no profile of CacheGen"):
            CacheGenProfile.read(file)
    for text in ("{", "[" * 100_000):
        file.write_text(text)
        with pytest.raises(ValueError, match="is no profile of CacheGen"):
            CacheGenProfile.read(file)
