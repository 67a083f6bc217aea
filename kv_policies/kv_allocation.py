"""What keys and values take in memory: one piece for each text, tensors that grow, blocks.

All three hold the same texts. One piece is as long as the longest text that may come; growing
tensors pad a batch to its longest text, and are copied at each step; of blocks only the last of
each text has room to spare (PagedAttention, Kwon et al., 2023). Nothing is computed from a formula:
tensors are allocated, blocks are taken, until a budget of bytes is used up.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import cycle, islice
from random import Random
from typing import Literal

import torch
from transformers import DynamicCache, PretrainedConfig, StaticCache

from kv_policies.generation import held_bytes
from kv_policies.policy import ModelShape, PolicyError, require_size

Way = Literal["one piece", "growing", "blocks"]
MOST_BATCH = 4096
"""A budget that holds so many texts is not used up."""
REPLY_TOKENS = (16, 256)
"""Replies are from so long to so long; a server does not know it beforehand."""


class OutOfKvMemory(Exception):
    """The budget is used up."""


@dataclass(frozen=True, slots=True)
class KvNeed:
    """Where keys and values of texts go: `piece_tokens` is the longest text that may come, and
    `budget_bytes` what there is."""

    config: PretrainedConfig
    texts: Sequence[int]
    piece_tokens: int
    budget_bytes: int
    dtype: torch.dtype
    device: torch.device

    def __post_init__(self) -> None:
        if not self.texts or min(self.texts) < 2 or max(self.texts) > self.piece_tokens:
            raise PolicyError(
                f"texts of 2 to {self.piece_tokens:,} tokens are allocated: the longest has"
                f" {max(self.texts, default=0):,}"
            )
        if self.budget_bytes < self.bytes_per_token:
            raise PolicyError("a budget that holds no token: give more")

    @property
    def shape(self) -> ModelShape:
        return ModelShape.of(self.config)

    @property
    def bytes_per_token(self) -> int:
        """Keys and values of all layers."""
        shape = self.shape
        return 2 * shape.layers * shape.kv_heads * shape.head_dim * self.dtype.itemsize

    def lengths(self, batch: int) -> list[int]:
        """Tokens of the texts of a batch."""
        return list(islice(cycle(self.texts), batch))


@dataclass(frozen=True, slots=True)
class AllocationRow:
    """One way to hold a batch; `block_tokens` is 0 where there are no blocks. `kv_bytes` are held,
    `peak_bytes` were needed on the way, of which `used_bytes` are tokens; both are None where the
    budget was used up."""

    way: Way
    block_tokens: int
    batch: int
    kv_bytes: int | None
    peak_bytes: int | None
    used_bytes: int


@dataclass(frozen=True, slots=True)
class CapacityRow:
    """The largest batch that a way holds within the budget, up to `MOST_BATCH`. Blocks hold less
    than growing tensors from batch `crossover` on, None where they do not, or are no blocks."""

    way: Way
    block_tokens: int
    batch: int
    crossover: int | None


def workload(prompts: Sequence[int], seed: int = 0) -> list[int]:
    """Tokens of texts with these prompts, each with a reply of a random length."""
    random = Random(seed)
    return [prompt + random.randint(*REPLY_TOKENS) for prompt in prompts]


def measure_allocation(
    need: KvNeed, batches: Sequence[int], blocks: Sequence[int]
) -> Iterator[AllocationRow]:
    """Every way at every batch."""
    for batch in batches:
        used = sum(need.lengths(batch)) * need.bytes_per_token
        for way, block in _ways(blocks):
            found = _held(need, way, block, batch)
            held, peak = found or (None, None)
            yield AllocationRow(way, block, batch, held, peak, used)


def measure_capacity(
    need: KvNeed, blocks: Sequence[int], most_crossover: int
) -> Iterator[CapacityRow]:
    """How many texts each way holds; a crossover is looked for up to a batch."""
    for way, block in _ways(blocks):
        crossover = _crossover(need, block, most_crossover) if way == "blocks" else None
        yield CapacityRow(way, block, _largest(need, way, block), crossover)


def one_piece(need: KvNeed, batch: int) -> tuple[int, int]:
    """Bytes held and needed on the way. Raises OutOfKvMemory."""
    cache = StaticCache(config=need.config, max_cache_len=need.piece_tokens)
    shape, held = need.shape, 0
    for layer in cache.layers:
        size = (batch, shape.kv_heads, 0, shape.head_dim)
        empty = torch.empty(size, dtype=need.dtype, device=need.device)
        _require(need, held + batch * need.piece_tokens * need.bytes_per_token // shape.layers)
        layer.lazy_initialization(empty, empty)
        held = held_bytes(cache.layers)
    return held, held


def growing(need: KvNeed, batch: int) -> tuple[int, int]:
    """Bytes held and needed on the way, the last step included. Raises OutOfKvMemory."""
    shape, longest = need.shape, max(need.lengths(batch))
    cache, peak = DynamicCache(), 0
    for tokens in (longest - 1, 1):
        for layer in range(shape.layers):
            size = (batch, shape.kv_heads, tokens, shape.head_dim)
            new = torch.zeros(size, dtype=need.dtype, device=need.device)
            before = held_bytes(cache.layers)
            # Keys are there until their longer copy is, and then values.
            copied = held_bytes(cache.layers[layer : layer + 1]) // 2
            most = before + copied + 2 * new.nbytes
            _require(need, most)
            cache.update(new, new.clone(), layer)
            peak = max(peak, most)
    return held_bytes(cache.layers), peak


class KvBlockPool:
    """Blocks of a budget, and a table of them for each text."""

    def __init__(self, need: KvNeed, block_tokens: int) -> None:
        self.block_bytes = block_tokens * need.bytes_per_token
        self._block_tokens = block_tokens
        self._free = list(range(need.budget_bytes // self.block_bytes))
        self.tables: list[list[int]] = []

    def add(self, tokens: int) -> None:
        """A text, token by token. Raises OutOfKvMemory."""
        table: list[int] = []
        self.tables.append(table)
        for token in range(tokens):
            if token % self._block_tokens == 0:
                if not self._free:
                    raise OutOfKvMemory
                table.append(self._free.pop())


def in_blocks(need: KvNeed, block_tokens: int, batch: int) -> tuple[int, int]:
    """Bytes of the blocks that the batch takes, twice. Raises OutOfKvMemory."""
    pool = KvBlockPool(need, block_tokens)
    for tokens in need.lengths(batch):
        pool.add(tokens)
    held = sum(map(len, pool.tables)) * pool.block_bytes
    return held, held


def _ways(blocks: Sequence[int]) -> list[tuple[Way, int]]:
    for block in blocks:
        require_size("a block of", block)
    return [("one piece", 0), ("growing", 0), *(("blocks", block) for block in blocks)]


def _held(need: KvNeed, way: Way, block: int, batch: int) -> tuple[int, int] | None:
    try:
        if way == "blocks":
            return in_blocks(need, block, batch)
        return one_piece(need, batch) if way == "one piece" else growing(need, batch)
    except OutOfKvMemory:
        return None


def _largest(need: KvNeed, way: Way, block: int) -> int:
    """Tried with twice as many until it fails, then halfway in between."""
    fits, fails = 0, 1
    while fails <= MOST_BATCH and _held(need, way, block, fails) is not None:
        fits, fails = fails, 2 * fails
    while fails - fits > 1:
        middle = (fits + fails) // 2
        fits, fails = (
            (middle, fails) if _held(need, way, block, middle) is not None else (fits, middle)
        )
    return min(fits, MOST_BATCH)


def _crossover(need: KvNeed, block: int, most: int) -> int | None:
    """The batch from which on blocks always hold less, up to `most` or as far as both fit.

    Tensors tell their sizes on torch's device without memory, too.
    """
    found, need = None, replace(need, device=torch.device("meta"))
    for batch in range(1, most + 1):
        paged, grown = _held(need, "blocks", block, batch), _held(need, "growing", 0, batch)
        if paged is None or grown is None:
            break
        if paged[0] >= grown[0]:
            found = None
        elif found is None:
            found = batch
    return found


def _require(need: KvNeed, size_bytes: int) -> None:
    if size_bytes > need.budget_bytes:
        raise OutOfKvMemory
