"""The fewest prompt tokens any order of admission can compute."""

from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet

Chains = dict[tuple[int, tuple[int, ...]], int]
"""The number of a block by that of the one before it and its tokens."""


def lower_bound(
    prompts: Iterable[Sequence[int]],
    block_size: int,
    chains: Chains | None = None,
    cached: AbstractSet[int] = frozenset(),
) -> int:
    """Prompt tokens that must be computed with a prefix cache of whole blocks, however large.

    Each distinct chain of full blocks is computed once; each prompt computes at least the tokens
    behind its last reusable block, since a prompt is never taken from the cache entirely. For
    contexts without a common start this is one full prompt per context, and for each further
    prompt what lies behind the common blocks. Blocks of `chains` that are `cached` cost nothing.
    """
    chains = {} if chains is None else chains
    reusable: set[int] = set()
    always: set[int] = set()
    tails = 0
    for prompt in prompts:
        chain = prefix_blocks(prompt, block_size, chains)
        depth = (len(prompt) - 1) // block_size
        tails += len(prompt) - depth * block_size
        reusable.update(chain[:depth])
        always.update(chain[depth:])
    return tails + block_size * len(reusable - always - cached)


def prefix_blocks(prompt: Sequence[int], block_size: int, chains: Chains) -> list[int]:
    """Numbers of the full blocks of a prompt, equal where all tokens up to there
    are; new ones go into `chains`."""
    chain: list[int] = []
    parent = -1
    for end in range(block_size, len(prompt) + 1, block_size):
        block = (parent, tuple(prompt[end - block_size : end]))
        parent = chains.setdefault(block, len(chains))
        chain.append(parent)
    return chain
