"""A trace served by an engine with LMCache's memory behind its cache.

LMCache 0.5.6 gives memory up in a loop of its own: once a second, and only from `TRIGGER` of it
on, the least recently used `RATIO` of its chunks goes (L1EvictionController, eviction policy LRU).
Until then a write that finds no room keeps nothing, and what a second tier has cannot be loaded
either (L1Manager.reserve_write, PrefetchController). So hits depend on when the loop runs: the
same requests at the same times have a range of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from loadgen.locality.tier_replay import EnginePrefixCache, leading
from loadgen.locality.trace import Chain, Trace

TRIGGER, RATIO, PERIOD_S = 0.8, 0.2, 1.0
PHASES = 50
"""Moments of the first round of the loop that are tried, evenly over a period."""


@dataclass(frozen=True, slots=True)
class LmcacheTier:
    """Memory for so many chunks, each of an engine's block; behind it, where `is_backed`, a tier
    that holds all that was ever stored."""

    chunks: int
    is_backed: bool = False


class LmcacheReplay:
    """One request after the other. Chunks that a second tier gave are not kept in memory."""

    def __init__(
        self,
        trace: Trace,
        times_s: Sequence[tuple[float, float]],
        engine_blocks: int,
        tier: LmcacheTier,
    ) -> None:
        """`times_s` are of each request when it was sent, and when its first token came and its
        prompt was computed. Raises UsageError for requests side by side."""
        self._requests = [*zip(trace.chains, times_s, strict=True)]
        self._trace, self._engine_blocks, self._tier = trace, engine_blocks, tier

    def shares(self) -> list[float]:
        """Of the prompt tokens, 0 to 1, those that need no computing, lowest first: one for each
        moment at which the loop may have begun."""
        return sorted(self._share(PERIOD_S * phase / PHASES) for phase in range(PHASES))

    def _share(self, first_s: float) -> float:
        cache = EnginePrefixCache(self._trace, self._engine_blocks)
        memory = _Memory(self._tier, first_s)
        cached = 0
        for request, (sent_s, first_token_s) in self._requests:
            memory.run_loop(sent_s)
            found = cache.find(request)
            known = memory.leading(request)
            had_tokens = max(len(found), known) * self._trace.block_size
            cached += min(had_tokens, request.prompt_tokens - 1)
            cache.serve(request, found)
            memory.run_loop(first_token_s)
            memory.store(request.blocks[known:])
        return cached / self._trace.prompt_tokens


class _Memory:
    """Names of chunks, the least recently used first, and of those in the tier behind."""

    def __init__(self, tier: LmcacheTier, first_s: float) -> None:
        self._tier, self._next_s = tier, first_s
        self._names: dict[int, None] = {}
        self._behind: set[int] = set()

    def run_loop(self, until_s: float) -> None:
        while self._next_s <= until_s:
            self._next_s += PERIOD_S
            if len(self._names) >= TRIGGER * self._tier.chunks:
                for name in [*islice(self._names, int(RATIO * len(self._names)))]:
                    del self._names[name]

    def leading(self, request: Chain) -> int:
        """Chunks from the start of a prompt that are had; those of them in memory are used."""
        near = leading(request.blocks, self._names)
        known = leading(request.blocks, self._names.keys() | self._behind)
        far = sum(name not in self._names for name in request.blocks[:known])
        if len(self._names) + far > self._tier.chunks:
            known = near
        self._use([name for name in request.blocks[:known] if name in self._names])
        return known

    def store(self, names: Sequence[int]) -> None:
        """All or none; what the memory takes the tier behind gets, too."""
        new = [name for name in names if name not in self._names]
        if len(self._names) + len(new) <= self._tier.chunks:
            self._use(new)
            if self._tier.is_backed:
                self._behind.update(new)

    def _use(self, names: Sequence[int]) -> None:
        """The first of a prompt is the most recently used."""
        for name in reversed(names):
            self._names.pop(name, None)
            self._names[name] = None
