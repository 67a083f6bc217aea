"""A trace served by an engine with vLLM's own tier of host memory behind its cache."""

from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, count, islice, takewhile

from loadgen.errors import UsageError
from loadgen.locality.replay import BlockPool
from loadgen.locality.trace import Chain, Trace


@dataclass(frozen=True, slots=True)
class TierHits:
    """Prompt tokens that were taken from the engine's cache, and from the tier behind it; of those
    that the tier stored, how many were never taken while it had them, and how many it has at the
    end."""

    engine_tokens: int
    tier_tokens: int
    stored_tokens: int = 0
    unread_tokens: int = 0
    kept_tokens: int = 0


def leading(names: Iterable[int], known: Container[int]) -> int:
    """How many of the names are known, up to the first that is not."""
    return sum(1 for _ in takewhile(known.__contains__, names))


class HostTier:
    """Names of blocks, the least recently used first (vllm/v1/kv_offload/cpu, policy `lru`)."""

    def __init__(self, blocks: int) -> None:
        self._blocks = blocks
        self._names: dict[int, None] = {}
        self._unread: set[int] = set()
        self.stored_blocks = self.read_blocks = 0
        """Those that were read while they were stored count once each time they are stored."""

    def __len__(self) -> int:
        return len(self._names)

    def leading(self, names: Iterable[int]) -> int:
        """How many of them it has, up to the first that it has not."""
        return leading(names, self._names)

    def store(self, offered: Sequence[int]) -> bool:
        """Take those it has not, all or none; what is offered is not evicted for them."""
        new = [name for name in offered if name not in self._names]
        protected = set(offered)
        idle = (name for name in self._names if name not in protected)
        too_many = max(0, len(self._names) + len(new) - self._blocks)
        evicted = [*islice(idle, too_many)]
        if len(evicted) < too_many:
            return False
        for name in evicted:
            del self._names[name]
        self._unread.difference_update(evicted)
        self._names |= dict.fromkeys(new)
        self._unread.update(new)
        self.stored_blocks += len(new)
        return True

    def read(self, names: Iterable[int]) -> None:
        """These are loaded, all of which it has."""
        first_time = self._unread.intersection(names)
        self.read_blocks += len(first_time)
        self._unread -= first_time

    def used(self, names: Sequence[int]) -> None:
        """A request has ended; of its blocks the first is the most recently used."""
        for name in reversed(names):
            if name in self._names:
                del self._names[name]
                self._names[name] = None


class EnginePrefixCache:
    """vLLM's own prefix cache, one request after the other."""

    def __init__(self, trace: Trace, blocks: int) -> None:
        """Raises UsageError for requests side by side."""
        if not trace.is_sequential:
            raise UsageError(
                f"a tier is predicted for one request after the other: here {trace.in_flight} are"
                " in flight"
            )
        self._size = trace.block_size
        self._pool = BlockPool(blocks)
        self._reply_names = count(-1, -1)  # no prompt has a name below 0

    def find(self, request: Chain) -> list[int]:
        """The blocks it has from the start of a prompt, whose last token is always computed."""
        return self._pool.find(request.blocks[: (request.prompt_tokens - 1) // self._size])

    def serve(self, request: Chain, found: list[int]) -> None:
        """To its end, with these blocks from the cache."""
        self._pool.hold(found)
        held = -(-request.kept_tokens // self._size)
        blocks = [*found, *self._pool.take(held - len(found))]
        filled = request.kept_tokens // self._size
        names = chain(request.blocks, self._reply_names)
        for block, name in islice(zip(blocks, names, strict=False), len(found), filled):
            self._pool.name(block, name)
        self._pool.give_back(blocks)


def computed_after_steps(trace: Trace, request: Chain, known_tokens: int) -> Iterator[int]:
    """How many tokens of a prompt have KV after each step."""
    yield from range(known_tokens + trace.step_tokens, request.prompt_tokens, trace.step_tokens)
    yield request.prompt_tokens


class TierReplay:
    """One request after the other, as vLLM 0.32 serves them with its OffloadingConnector.

    The tier gives what follows the blocks that the engine has; the last token of a prompt is always
    computed. It is offered the prompt's full blocks, as each step has computed them; those that it
    gave are not offered, and may be evicted for the rest of their own prompt. What found no room is
    offered again with the next step's. Blocks that replies fill are not kept in it.
    """

    def __init__(self, trace: Trace, engine_blocks: int, tier_blocks: int) -> None:
        """Raises UsageError for requests side by side, of which it knows nothing."""
        self._trace = trace
        self._cache = EnginePrefixCache(trace, engine_blocks)
        self._tier = HostTier(tier_blocks)
        self._engine_tokens = self._tier_tokens = 0

    def run(self) -> TierHits:
        """To the last reply; the engine's cache holds the longest request."""
        for request in self._trace.chains:
            self._serve(request)
        tier, size = self._tier, self._trace.block_size
        unread = tier.stored_blocks - tier.read_blocks
        stored = [blocks * size for blocks in (tier.stored_blocks, unread, len(tier))]
        return TierHits(self._engine_tokens, self._tier_tokens, *stored)

    def _serve(self, request: Chain) -> None:
        size, names = self._trace.block_size, request.blocks
        found = self._cache.find(request)
        loaded = self._tier.leading(names[len(found) :])
        self._tier.read(names[len(found) : len(found) + loaded])
        self._engine_tokens += len(found) * size
        self._tier_tokens += min(loaded * size, request.prompt_tokens - 1 - len(found) * size)
        self._cache.serve(request, found)
        first = len(found) if loaded else 0
        start = first + loaded
        for tokens in computed_after_steps(self._trace, request, (len(found) + loaded) * size):
            end = tokens // size
            if self._tier.store(names[start:end]):
                start = end
        self._tier.used(names[first:])
