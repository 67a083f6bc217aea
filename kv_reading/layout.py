"""What a stored chunk's bytes mean: found by a forward pass of the model."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kv_reading import KvError
from kv_reading.kv import Floats, Kv, KvShape, joined
from kv_tiers.packing import EnginePacking, possible_packings

PLANES = "planes"
"""Engines that keep keys and values apart: [2, layers, tokens, heads, dim]."""
WIDTH_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}
MIN_COSINE = 0.97
"""Of the keys, or values, of one layer with those of the forward pass. Rounding in an engine's
bfloat16 costs under 0.01 here; a wrong layout leaves under 0.5."""


@dataclass(frozen=True, slots=True)
class Layout:
    """`packing` is PLANES or the name of an EnginePacking; `dtype` bfloat16, float16 or float32;
    `block_tokens` the engine's block, of which a chunk holds one or several."""

    packing: str
    dtype: str
    block_tokens: int


def possible_layouts(shape: KvShape, chunk_tokens: int, chunk_bytes: int) -> list[Layout]:
    """Those that a chunk of this size can have; none where the size does not fit the model."""
    each, rest = divmod(chunk_bytes, shape.values_per_token * chunk_tokens)
    dtypes = [] if rest else [name for name, width in WIDTH_BYTES.items() if width == each]
    packings = possible_packings(shape.heads, chunk_tokens, shape.heads * shape.head_dim)
    rows = [each for each in packings if each.by_token]  # LMCache's
    found = [Layout(each.name, dtype, each.block_tokens) for dtype in dtypes for each in rows]
    return [*found, *(Layout(PLANES, dtype, chunk_tokens) for dtype in dtypes)]


def decode(content: bytes, shape: KvShape, layout: Layout) -> Kv:
    """Keys and values of one chunk. `content` must have a whole number of blocks."""
    flat = _floats(content, layout.dtype)
    tokens = len(flat) // shape.values_per_token
    if layout.packing != PLANES:
        packing = EnginePacking(layout.packing, shape.heads, layout.block_tokens)
        places = packing.places(tokens, shape.heads * shape.head_dim)
        flat = flat.reshape(shape.layers, -1)[:, places].swapaxes(0, 1)
    planes = flat.reshape(2, shape.layers, tokens, shape.heads, shape.head_dim)
    keys, values = planes.transpose(0, 1, 3, 2, 4)
    return Kv(np.ascontiguousarray(keys), np.ascontiguousarray(values))


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
