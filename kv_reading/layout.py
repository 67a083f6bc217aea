"""How an engine lays keys and values out inside a stored chunk.

vLLM's CPU kernels pack a block's keys and values for the instructions of the machine. LMCache
copies blocks as they are, so what a chunk's bytes mean depends on the machine that made them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from kv_reading import KvError
from kv_reading.kv import Floats, Kv, KvShape, joined

TILE = 16
"""Tokens or dimensions side by side in AMX's packing."""
BLOCK_TOKENS = (128, 64, 32, 16, 256)
"""Commonest on a CPU first."""
PLANES = "planes"
"""Engines that keep keys and values apart: [2, layers, tokens, heads, dim]."""
WIDTH_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}
MIN_COSINE = 0.97
"""Of the keys, or values, of one layer with those of the forward pass. Rounding in an engine's
bfloat16 costs under 0.01 here; a wrong layout leaves under 0.5."""


@dataclass(frozen=True, slots=True)
class Layout:
    """`packing` is a key of PACKINGS; `dtype` bfloat16, float16 or float32; `block_tokens` the
    engine's block, of which a chunk holds one or several."""

    packing: str
    dtype: str
    block_tokens: int


def _amx(block: Floats) -> Floats:
    """Pairs for 16-bit products: keys [tokens/16, dim/2, 16 tokens, 2 dims], values
    [dim/16, tokens/2, 16 dims, 2 tokens]."""
    layers, heads, blocks, _, tokens, dim = block.shape
    lead = (layers, heads, blocks)
    keys = block[:, :, :, 0].reshape(*lead, tokens // TILE, dim // 2, TILE, 2)
    keys = keys.transpose(0, 1, 2, 3, 5, 4, 6).reshape(*lead, tokens, dim)
    values = block[:, :, :, 1].reshape(*lead, dim // TILE, tokens // 2, TILE, 2)
    values = values.transpose(0, 1, 2, 4, 6, 3, 5).reshape(*lead, tokens, dim)
    return np.stack((keys, values), axis=3)


def _vec(block: Floats) -> Floats:
    """Vectors: keys [dim, tokens], values [tokens, dim]."""
    layers, heads, blocks, _, tokens, dim = block.shape
    keys = block[:, :, :, 0].reshape(layers, heads, blocks, dim, tokens).swapaxes(3, 4)
    return np.stack((keys, block[:, :, :, 1]), axis=3)


def _rows(block: Floats) -> Floats:
    return block


PACKINGS: dict[str, Callable[[Floats], Floats]] = {"amx": _amx, "vec": _vec, "rows": _rows}
"""From a block [layers, heads, blocks, 2, tokens, dim] as it lies to one in plain order."""


def possible_layouts(shape: KvShape, chunk_tokens: int, chunk_bytes: int) -> list[Layout]:
    """Those that a chunk of this size can have; none where the size does not fit the model."""
    each, rest = divmod(chunk_bytes, shape.values_per_token * chunk_tokens)
    dtypes = [] if rest else [name for name, width in WIDTH_BYTES.items() if width == each]
    blocks = [size for size in BLOCK_TOKENS if chunk_tokens % size == 0]
    found = [Layout(*each) for each in product(PACKINGS, dtypes, blocks) if _fits(each[0], shape)]
    return [*found, *(Layout(PLANES, dtype, chunk_tokens) for dtype in dtypes)]


def decode(content: bytes, shape: KvShape, layout: Layout) -> Kv:
    """Keys and values of one chunk. `content` must have a whole number of blocks."""
    flat = _floats(content, layout.dtype)
    if layout.packing == PLANES:
        planes = flat.reshape(2, shape.layers, -1, shape.heads, shape.head_dim)
        keys, values = planes.transpose(0, 1, 3, 2, 4)
        return Kv(np.ascontiguousarray(keys), np.ascontiguousarray(values))
    # By token as LMCache writes it; a head's share of all tokens of a block is that block.
    rows = flat.reshape(shape.layers, -1, shape.heads, 2 * shape.head_dim).transpose(0, 2, 1, 3)
    block = rows.reshape(shape.layers, shape.heads, -1, 2, layout.block_tokens, shape.head_dim)
    plain = PACKINGS[layout.packing](block)
    merged = plain.transpose(3, 0, 1, 2, 4, 5).reshape(
        2, shape.layers, shape.heads, -1, shape.head_dim
    )
    return Kv(merged[0], merged[1])


def _fits(packing: str, shape: KvShape) -> bool:
    return packing != "amx" or shape.head_dim % TILE == 0


def _floats(content: bytes, dtype: str) -> Floats:
    if dtype == "bfloat16":  # the upper half of a float32
        widened = np.frombuffer(content, "<u2").astype(np.uint32) << 16
        return widened.view(np.float32)
    return np.frombuffer(content, np.dtype(dtype).newbyteorder("<")).astype(np.float32)


def agreement(stored: Kv, reference: Kv) -> float:
    """The lowest cosine over layers, keys and values, each layer taken as one long vector."""
    cosines = (_cosines(stored.keys, reference.keys), _cosines(stored.values, reference.values))
    return float(np.min(cosines))


def find_layout(
    contents: Sequence[bytes], reference: Kv, shape: KvShape, chunk_tokens: int
) -> tuple[Layout, float]:
    """The layout in which these chunks of one prompt agree best with its forward pass, and how
    well. Raises KvError where none does."""
    if reference.keys.shape[:2] != (shape.layers, shape.heads):
        raise KvError(f"the model's KV is {reference.keys.shape}, its config says {shape}")
    tried: list[tuple[float, Layout]] = []
    whole = reference.part(0, chunk_tokens * len(contents))
    for layout in possible_layouts(shape, chunk_tokens, len(contents[0])):
        stored = joined([decode(content, shape, layout) for content in contents])
        tried.append((agreement(stored, whole), layout))
    if not tried:
        raise KvError(
            f"a chunk of {len(contents[0])} bytes is not {chunk_tokens} tokens of"
            f" {shape.layers} layers, {shape.heads} heads and {shape.head_dim} dimensions:"
            " name the model that was served"
        )
    best, layout = max(tried, key=lambda each: each[0])
    if not best >= MIN_COSINE:
        raise KvError(
            "the stored KV matches a forward pass of the model in no known layout (best cosine"
            f" {best:.2f}, {layout.packing}): decode it on the kind of machine that made it, with"
            " the model that was served, or use --reference"
        )
    return layout, best


def _cosines(one: Floats, other: Floats) -> Floats:
    first, second = (each.reshape(len(each), -1).astype(np.float64) for each in (one, other))
    lengths = np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1)
    products = np.sum(first * second, axis=1) / np.maximum(lengths, 1e-30)
    cosines: Floats = np.nan_to_num(products, nan=-1.0).astype(np.float32)
    return cosines
