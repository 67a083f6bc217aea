"""How an engine lays keys and values out inside a stored chunk, and where each is in plain order.

vLLM's CPU kernels pack a block's keys and values, head by head, for the instructions of the
machine. vLLM's own offload copies blocks as they are; LMCache gives each token a row with a share
of each head's block. What a chunk's bytes mean depends on the machine that made them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Places = NDArray[np.intp]
TILE = 16
"""Tokens or channels side by side in AMX's packing."""
BLOCK_TOKENS = (128, 64, 32, 16, 256)
"""Commonest on a CPU first."""
ROWS = "rows"


def _amx(block: Places) -> Places:
    """Pairs for 16-bit products: keys [tokens/16, dim/2, 16 tokens, 2 dims], values
    [dim/16, tokens/2, 16 dims, 2 tokens]."""
    heads, blocks, _, tokens, dim = block.shape
    keys = block[:, :, 0].reshape(heads, blocks, tokens // TILE, dim // 2, TILE, 2)
    keys = keys.transpose(0, 1, 2, 4, 3, 5).reshape(heads, blocks, tokens, dim)
    values = block[:, :, 1].reshape(heads, blocks, dim // TILE, tokens // 2, TILE, 2)
    values = values.transpose(0, 1, 3, 5, 2, 4).reshape(heads, blocks, tokens, dim)
    return np.stack((keys, values), axis=2)


def _vec(block: Places) -> Places:
    """Vectors: keys [dim, tokens], values [tokens, dim]."""
    heads, blocks, _, tokens, dim = block.shape
    keys = block[:, :, 0].reshape(heads, blocks, dim, tokens).swapaxes(2, 3)
    return np.stack((keys, block[:, :, 1]), axis=2)


def _rows(block: Places) -> Places:
    return block


PACKINGS: dict[str, Callable[[Places], Places]] = {"amx": _amx, "vec": _vec, ROWS: _rows}
"""From a block [heads, blocks, 2, tokens, dim] as it lies to one in plain order."""


@dataclass(frozen=True, slots=True)
class EnginePacking:
    """`name` is a key of PACKINGS; a chunk holds one or several blocks of `block_tokens`, in rows
    `by_token`, or head by head."""

    name: str
    heads: int
    block_tokens: int
    by_token: bool = True

    def __str__(self) -> str:
        order = "by token" if self.by_token else "by head"
        return f"{self.name}, {self.heads} heads, blocks of {self.block_tokens}, {order}"

    def fits(self, tokens: int, channels: int) -> bool:
        """Whether a chunk of so many tokens, and channels of all heads, can lie so."""
        dim, rest = divmod(channels, self.heads)
        whole = not rest and tokens % self.block_tokens == 0
        in_tiles = dim % TILE == 0 and self.block_tokens % TILE == 0
        return whole and (self.name != "amx" or in_tiles)

    def places(self, tokens: int, channels: int) -> Places:
        """[2, tokens, channels]: where among a layer's values each key and value is."""
        return _places(self, tokens, channels)


@lru_cache(maxsize=4)
def _places(packing: EnginePacking, tokens: int, channels: int) -> Places:
    heads, dim = packing.heads, channels // packing.heads
    block: Places = np.arange(2 * tokens * channels)
    if packing.by_token:
        block = block.reshape(tokens, heads, 2 * dim).swapaxes(0, 1)
    block = block.reshape(heads, -1, 2, packing.block_tokens, dim)
    plain = PACKINGS[packing.name](block)
    return plain.transpose(2, 1, 3, 0, 4).reshape(2, tokens, channels)


def possible_packings(heads: int, tokens: int, channels: int) -> list[EnginePacking]:
    """Those that a chunk can have: by token, of a single block by head, and as GPUs' kernels have
    it, where a token's keys and values follow each other."""
    found = [EnginePacking(name, heads, block) for name in PACKINGS for block in BLOCK_TOKENS]
    found += [EnginePacking(name, heads, tokens, by_token=False) for name in PACKINGS]
    found += [EnginePacking(ROWS, heads, 1, by_token) for by_token in (True, False)]
    return [each for each in found if each.fits(tokens, channels)]
