"""Block hashes of made-up requests, as vLLM computes them: those of a context once.

Importing this imports vLLM.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import cache, lru_cache, partial
from typing import Any

from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.request import Request

KNOWN_HASHES, KNOWN_CONTEXTS = 1 << 16, 1 << 10
BlockHasher = Callable[[Request], list[Any]]
"""Returns the hashes of a request's full blocks beyond those that it has."""


@cache
def block_hasher(block_size: int) -> BlockHasher:
    """vLLM's own, with a hash that is the same in every process."""
    hash_fn = get_hash_fn_by_name("sha256")
    init_none_hash(hash_fn)
    hasher: BlockHasher = get_request_block_hasher(block_size, lru_cache(KNOWN_HASHES)(hash_fn))
    return hasher


class ContextHashes:
    """Keeps the hashes of the last prompt of each context, for what the next one shares of it."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._hasher = block_hasher(block_size)
        self._known: OrderedDict[str, tuple[Sequence[int], list[Any]]] = OrderedDict()

    def of(self, context: str) -> BlockHasher:
        """The hasher of a request with that context; it may share nothing with others of it."""
        return partial(self._hash, context)

    def _hash(self, context: str, request: Request) -> list[Any]:
        if request.block_hashes:
            return self._hasher(request)
        ids = request.prompt_token_ids or ()
        known_ids, known = self._known.pop(context, ((), []))
        request.block_hashes += known[: _shared_blocks(ids, known_ids, self._block_size)]
        more = self._hasher(request)  # goes on behind what the request has
        self._known[context] = ids, [*request.block_hashes, *more]
        if len(self._known) > KNOWN_CONTEXTS:
            self._known.popitem(last=False)
        return more


@cache
def context_hashes(block_size: int) -> ContextHashes:
    """For all engines with blocks of that size."""
    return ContextHashes(block_size)


def _shared_blocks(one: Sequence[int], other: Sequence[int], size: int) -> int:
    low, high = 0, min(len(one), len(other)) // size
    while low < high:
        middle = (low + high + 1) // 2
        begins, ends = low * size, middle * size
        if one[begins:ends] == other[begins:ends]:
            low = middle
        else:
            high = middle - 1
    return low
