"""Which layout this machine's chunks have, by comparing them with a forward pass."""

from collections.abc import Sequence

import numpy as np

from kv_reading.errors import KvError
from kv_reading.kv import Floats, Kv, Shape, joined
from kv_reading.layout import Layout, decode, possible_layouts

MIN_COSINE = 0.97
"""Of the keys, or values, of one layer with those of the forward pass. Rounding in an engine's
bfloat16 costs under 0.01 here; a wrong layout leaves under 0.5."""


def agreement(stored: Kv, reference: Kv) -> float:
    """The lowest cosine over layers, keys and values, each layer taken as one long vector."""
    cosines = (_cosines(stored.keys, reference.keys), _cosines(stored.values, reference.values))
    return float(np.min(cosines))


def find_layout(
    contents: Sequence[bytes], reference: Kv, shape: Shape, chunk_tokens: int
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
