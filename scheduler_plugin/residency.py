"""How much of a waiting request's prefix is in vLLM's KV cache, read without touching it."""

from collections.abc import Sequence
from math import lcm
from typing import Any

from vllm.v1.core.kv_cache_utils import get_block_hash, get_group_id
from vllm.v1.kv_cache_interface import FullAttentionSpec


class Residency:
    """Looks block hashes up in a scheduler's block pool; every `stride`-th of a prompt is one's.

    Counts leading blocks by halving, as vLLM frees a request's blocks from its end: a cached
    block has its predecessors cached. Where that once does not hold the answer is an estimate,
    and only the order depends on it.

    A block of a prompt has `block_tokens` tokens and takes `per_block` blocks of the pool, as each
    group of full attention has its own. `windows` are the block size of each other group and how
    many a request takes there at most: what is behind its window is given back.
    """

    def __init__(self, scheduler: Any) -> None:
        pool = scheduler.kv_cache_manager.block_pool
        self._lookup = pool.get_cached_block
        managers = scheduler.kv_cache_manager.coordinator.single_type_managers
        # Other kinds of attention keep only the end of a prefix.
        full = {i: m for i, m in enumerate(managers) if _keeps_prefixes(m.kv_cache_spec)}
        self._group_ids = list(full)
        # Blocks of several sizes end together only at multiples of all of them.
        size = lcm(*(manager.block_size for manager in full.values()))
        self.stride = max(1, size // scheduler.hash_block_size)
        self.block_tokens = int(self.stride * scheduler.hash_block_size)
        self.per_block = sum(self.block_tokens // m.block_size for m in full.values()) or 1
        others = [manager for i, manager in enumerate(managers) if i not in full]
        self.windows = [(m.block_size, m.max_admission_blocks_per_request or 1) for m in others]

    @property
    def is_readable(self) -> bool:
        """Whether this model has a KV cache that `blocks` can look into."""
        return bool(self._group_ids)

    def blocks(self, hashes: Sequence[Any], more_than: int = 0) -> int:
        """How many leading blocks of a prompt with these chained hashes are cached.

        0 unless `more_than` are, which one look tells.
        """
        stride, cached = self.stride, self._is_cached
        most = len(hashes) // stride
        if most <= more_than or not cached(hashes[(more_than + 1) * stride - 1]):
            return 0
        low = more_than + 1
        while low < most:
            middle = (low + most + 1) // 2
            if cached(hashes[middle * stride - 1]):
                low = middle
            else:
                most = middle - 1
        return low

    def hash_in(self, key: Any) -> object:
        """The hash in a block's key; None of a group that keeps only the ends of prompts."""
        if key is None or get_group_id(key) not in self._group_ids:
            return None
        return get_block_hash(key)

    def _is_cached(self, block_hash: Any) -> bool:
        return bool(self._group_ids) and self._lookup(block_hash, self._group_ids) is not None


def _keeps_prefixes(spec: Any) -> bool:
    """Of full attention, also of layers of several sizes, which vLLM files under one spec."""
    return (
        isinstance(getattr(spec, "first_spec", spec), FullAttentionSpec) and spec.prefix_cacheable
    )
