"""Two tiers, and a file behind them for the oldest blocks once the slow tier is full.

A block goes from the file to the fast tier, and the slow tier stays as it is. The operating system
may keep the file in its memory: a move is then a copy, as between the other two.
"""

import os
from dataclasses import dataclass
from math import prod
from tempfile import TemporaryFile
from weakref import finalize

import torch
from torch import Tensor

from kv_policies.policies.two_tier import Places, TwoTier, TwoTierLayer
from kv_policies.policy import (
    KeysValues,
    KvLayer,
    ModelShape,
    PolicyError,
    Traffic,
    at_least,
)


@dataclass(frozen=True)
class ThreeTier(TwoTier):
    name = "three-tier"
    summary = "two-tier, with the oldest blocks in a file once the slow tier has its number"

    slow_blocks: int = 8

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(1, self, "slow_blocks")

    def layer(self, index: int, shape: ModelShape, earlier: list[KvLayer]) -> KvLayer:
        return _ThreeTierLayer(self)


class _ThreeTierLayer(TwoTierLayer):
    """Blocks with a number below that of the file's blocks are in the file."""

    def __init__(self, policy: ThreeTier) -> None:
        super().__init__(policy.window_tokens, policy.fetched_blocks)
        self._slow_blocks = policy.slow_blocks
        self._file = _BlockFile()
        self._disk_traffic = Traffic()

    @property
    def disk_bytes(self) -> int:
        return self._file.size_bytes

    @property
    def disk_traffic(self) -> Traffic:
        return self._disk_traffic

    def _store(self, moved: KeysValues) -> None:
        super()._store(moved)
        assert self._slow is not None
        surplus = self._slow.keys.shape[2] - self._slow_blocks
        if surplus > 0:
            self._file.append(KeysValues(*(each[:, :, :surplus] for each in self._slow)))
            self._slow = KeysValues(*(each[:, :, surplus:].clone() for each in self._slow))

    def _move_in(self, blocks: Places, places: Places) -> None:
        on_disk = blocks[2] < self._file.blocks
        for is_here, which in ((False, on_disk), (True, ~on_disk)):
            if not which.any():
                continue
            source, place = (_chosen(each, which) for each in (blocks, places))
            if is_here:
                super()._move_in((*source[:2], source[2] - self._file.blocks), place)
            else:
                self._disk_traffic += self._moved(self._file.read, source, place)


def _chosen(places: Places, which: Tensor) -> Places:
    return tuple(each[which.to(each.device)] for each in places)


class _BlockFile:
    """Blocks in a file without a name, which goes with this object: raw bytes of keys, then of
    values, of each head of each text of each block."""

    def __init__(self) -> None:
        self.blocks = self.size_bytes = 0
        self._sizes: tuple[int, ...] = ()
        self._dtype = torch.float32
        self._file = TemporaryFile()  # noqa: SIM115 - it lives as long as the blocks
        finalize(self, self._file.close)

    def append(self, states: KeysValues) -> None:
        """Of [batch, KV heads, blocks, block tokens, head dim]. Raises PolicyError."""
        both = torch.stack(tuple(states)).permute(3, 1, 2, 0, 4, 5).contiguous()
        self._sizes, self._dtype = both.shape[1:], both.dtype
        try:
            self._file.write(both.view(torch.uint8).numpy().data)
            self._file.flush()
        except OSError as error:
            raise PolicyError(
                f"three-tier: its file cannot be written ({error.strerror}): set TMPDIR to another"
                " folder"
            ) from error
        self.blocks += len(both)
        self.size_bytes += both.nbytes

    def read(self, blocks: Places) -> KeysValues:
        """[blocks, block tokens, head dim] of blocks by text, head and number."""
        texts, heads, *sizes = self._sizes
        block_bytes = prod(sizes) * self._dtype.itemsize
        places = (blocks[2] * texts + blocks[0]) * heads + blocks[1]
        raw = bytearray()
        for place in places.tolist():
            raw += os.pread(self._file.fileno(), block_bytes, place * block_bytes)
        return KeysValues(*torch.frombuffer(raw, dtype=self._dtype).reshape(-1, *sizes).unbind(1))
