"""Chains for prompts whose tokens are not known, from what requests say of themselves."""

from collections.abc import Iterable, Sequence
from itertools import chain, count
from typing import Protocol

from loadgen.locality.trace import Chain


class Told(Protocol):
    """What a run tells of a request; lengths in tokens."""

    @property
    def context(self) -> str:
        """The context's id, empty where there is none."""

    @property
    def question(self) -> str:
        """The question's id."""

    @property
    def prompt_tokens(self) -> int:
        """Length of the prompt."""

    @property
    def output_tokens(self) -> int:
        """Length of the reply."""


def shared_prefix_chains(requests: Sequence[Told], block_size: int) -> tuple[Chain, ...]:
    """One chain for each request. All prompts of a context share what its shortest prompt has, so
    the prefix is too long by that prompt's question; the same question is the same prompt."""
    shared = _shortest(requests)
    names: dict[tuple[str, str, int], int] = {}
    chains = []
    for each in requests:
        common = shared[each.context] // block_size if each.context else 0
        keys = chain(
            ((each.context, "", place) for place in range(common)),
            ((each.context, each.question, place) for place in count(common)),
        )
        blocks = (names.setdefault(key, len(names) + 1) for key in keys)
        chains.append(_cut(blocks, each, block_size))
    return tuple(chains)


def _cut(blocks: Iterable[int], request: Told, block_size: int) -> Chain:
    full = request.prompt_tokens // block_size
    named = tuple(name for name, _ in zip(blocks, range(full), strict=False))
    return Chain(named, request.prompt_tokens, request.output_tokens)


def _shortest(requests: Iterable[Told]) -> dict[str, int]:
    found: dict[str, int] = {}
    for each in requests:
        found[each.context] = min(each.prompt_tokens, found.get(each.context, each.prompt_tokens))
    return found
