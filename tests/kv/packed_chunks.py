"""Chunks as engines write them, packed element by element, to be decoded again."""

from collections.abc import Callable

import numpy as np

from kv_reading.kv import Floats, Kv
from kv_reading.stored import SEPARATOR, SLASH, SUFFIX, ChunkName

Place = Callable[[int, int, int, int], int]
"""Where a token's dimension stands in a block of so many tokens and dimensions."""


def file_name(name: ChunkName) -> str:
    """As LMCache writes it."""
    fields = [name.model.replace("/", SLASH), f"{name.rank:#010x}", f"{name.group:x}"]
    fields += [name.digest.hex(), *([name.salt] if name.salt else [])]
    return SEPARATOR.join(fields) + SUFFIX


def amx_key(t: int, d: int, tokens: int, dim: int) -> int:
    return ((t // 16) * (dim // 2) + d // 2) * 32 + (t % 16) * 2 + d % 2


def amx_value(t: int, d: int, tokens: int, dim: int) -> int:
    return ((d // 16) * (tokens // 2) + t // 2) * 32 + (d % 16) * 2 + t % 2


def by_rows(t: int, d: int, tokens: int, dim: int) -> int:
    return t * dim + d


def by_columns(t: int, d: int, tokens: int, dim: int) -> int:
    return d * tokens + t


PLACES: dict[str, tuple[Place, Place]] = {
    "amx": (amx_key, amx_value),
    "vec": (by_columns, by_rows),
    "rows": (by_rows, by_rows),
}


def packed(kv: Kv, packing: str, block_tokens: int) -> Floats:
    """[layers, tokens, heads * 2 * dim], as LMCache's file has it, of whole blocks."""
    layers, heads, tokens, dim = kv.keys.shape
    out = np.zeros((layers, tokens, heads, 2 * dim), np.float32)
    for layer in range(layers):
        for head in range(heads):
            for start in range(0, tokens, block_tokens):
                block = _block(kv.part(start, start + block_tokens), layer, head, *PLACES[packing])
                out[layer, start : start + block_tokens, head] = block.reshape(-1, 2 * dim)
    return out.reshape(layers, tokens, -1)


def by_head(kv: Kv, packing: str) -> Floats:
    """[layers, values], a block of all tokens as it lies in vLLM's cache: head after head."""
    layers, heads = kv.keys.shape[:2]
    return np.stack(
        [
            np.concatenate([_block(kv, layer, head, *PLACES[packing]) for head in range(heads)])
            for layer in range(layers)
        ]
    )


def planes(kv: Kv) -> Floats:
    """[2, layers, tokens, heads * dim], of engines that keep keys and values apart."""
    both = np.stack((kv.keys, kv.values)).transpose(0, 1, 3, 2, 4)
    return both.reshape(*both.shape[:3], -1)


def as_bfloat16(values: Floats) -> bytes:
    """The upper halves, rounded to even as an engine rounds."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return rounded.astype("<u2").tobytes()


def random_kv(layers: int, heads: int, tokens: int, dim: int, seed: int = 0) -> Kv:
    """Numbers that bfloat16 holds exactly."""
    rng = np.random.default_rng(seed)
    shape = (layers, heads, tokens, dim)
    keys, values = (rng.integers(-128, 128, shape).astype(np.float32) / 8 for _ in range(2))
    return Kv(keys, values)


def _block(kv: Kv, layer: int, head: int, key_at: Place, value_at: Place) -> Floats:
    tokens, dim = kv.keys.shape[2:]
    block = np.zeros(2 * tokens * dim, np.float32)
    for t in range(tokens):
        for d in range(dim):
            block[key_at(t, d, tokens, dim)] = kv.keys[layer, head, t, d]
            block[tokens * dim + value_at(t, d, tokens, dim)] = kv.values[layer, head, t, d]
    return block
