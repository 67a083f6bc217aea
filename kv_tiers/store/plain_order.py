"""Tokens and channels of KV that an engine's CPU packs: found by a profile of the model's KV."""

import threading

import numpy as np

from kv_tiers.codecs import Bits, CacheGenProfile, FrameError
from kv_tiers.packing import EnginePacking, possible_packings

LEAST_AGREEMENT = 0.25
"""Of channel means with those of the profile. Seen in the right order: .55 to .96; in any other
one keys or values have .1 at most."""
MOST_TRIES, TRIED_OF = 8, 64
"""Chunks of a shape that agree in no order, until only one of so many is looked at."""
LAYERS_LOOKED_AT = 3

Shape = tuple[int, ...]
"""[layers, tokens, keys and values of all channels]."""


class PlainOrder:
    """Which packing the chunks of each shape have. Many threads may ask at once."""

    def __init__(self, profile: CacheGenProfile) -> None:
        self._profile = profile
        self._lock = threading.Lock()
        self._found: dict[Shape, EnginePacking] = {}
        self._failed: dict[Shape, int] = {}

    def possible(self, shape: Shape) -> list[EnginePacking]:
        """All that a chunk of this shape can have."""
        return possible_packings(self._profile.heads, shape[1], shape[2] // 2)

    def packing(self, flat: Bits, shape: Shape) -> EnginePacking:
        """That of this chunk, and of all others of its shape. Raises ValueError where the profile
        agrees in none."""
        with self._lock:
            if shape not in self._found:
                self._found[shape] = self._looked_for(flat, shape)
            return self._found[shape]

    def _looked_for(self, flat: Bits, shape: Shape) -> EnginePacking:
        layers, _, channels = self._profile.mean.shape
        if (shape[0], shape[2]) != (layers, 2 * channels):
            raise ValueError(
                f"the profile of {layers} layers and {channels} channels does not fit chunks of"
                f" {shape[0]} layers or blocks and {shape[2] // 2} channels"
            )
        best, packing = 0.0, None
        failed = self._failed.get(shape, 0)
        if failed < MOST_TRIES or failed % TRIED_OF == 0:
            at = np.unique(np.linspace(0, layers - 1, LAYERS_LOOKED_AT).astype(int))
            some = flat.reshape(layers, -1)[at]
            for each in self.possible(shape):
                plain = in_plain_order(some, (len(at), *shape[1:]), each)
                agreement = self._profile.agreement(plain, at)
                if agreement > best:
                    best, packing = agreement, each
        if packing is None or best < LEAST_AGREEMENT:
            self._failed[shape] = failed + 1
            raise ValueError("the profile agrees with the engine's KV in no known order")
        return packing


def in_plain_order(flat: Bits, shape: Shape, packing: EnginePacking) -> Bits:
    """[layers, 2, tokens, channels]."""
    found: Bits = flat.reshape(shape[0], -1)[:, packing.places(shape[1], shape[2] // 2)]
    return found


def in_packing(bits: Bits, shape: Shape, packing: EnginePacking) -> Bits:
    """What `in_plain_order` was given. Raises FrameError for values of another shape."""
    if bits.shape != (shape[0], 2, shape[1], shape[2] // 2):
        raise FrameError(f"values of shape {bits.shape} for a buffer of {shape}")
    flat = np.empty((shape[0], bits[0].size), dtype=np.uint16)
    flat[:, packing.places(shape[1], shape[2] // 2)] = bits
    return flat.reshape(-1)
