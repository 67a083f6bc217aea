"""The size of an engine's own KV cache, said in tokens and handed to it in blocks."""

from dataclasses import dataclass
from typing import Self

from loadgen.errors import UsageError

RESERVED_BLOCKS = 1  # vLLM's block pool keeps one null block for itself
MIN_USABLE_BLOCKS = 2


@dataclass(frozen=True, slots=True)
class KvCapacity:
    """`usable_blocks` of `block_size` tokens each, all of them free for requests."""

    block_size: int
    usable_blocks: int

    @classmethod
    def of_tokens(cls, kv_tokens: int, block_size: int) -> Self:
        """The smallest capacity of at least `kv_tokens`; UsageError below two blocks."""
        if block_size < 1:
            raise UsageError(f"a KV block of {block_size} tokens is not possible")
        usable_blocks = -(-kv_tokens // block_size)
        if usable_blocks < MIN_USABLE_BLOCKS:
            least = block_size * (MIN_USABLE_BLOCKS - 1) + 1
            raise UsageError(
                f"--kv-tokens {kv_tokens} is less than two KV blocks of {block_size} tokens:"
                f" give at least {least}"
            )
        return cls(block_size, usable_blocks)

    @property
    def blocks(self) -> int:
        """What the engine is told to allocate: the usable blocks and its own."""
        return self.usable_blocks + RESERVED_BLOCKS

    @property
    def usable_tokens(self) -> int:
        """Tokens of all requests together that fit."""
        return self.usable_blocks * self.block_size

    def max_model_len(self, window_tokens: int | None) -> int:
        """The longest request in tokens, reply included, that model and cache both allow."""
        return min(self.usable_tokens, window_tokens or self.usable_tokens)
