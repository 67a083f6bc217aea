"""A served trace once more, with LMCache's memory behind the engine's cache.

LMCache 0.5.6 gives memory up in a loop of its own: once a second, and only from `TRIGGER` of it
on, the least recently used `RATIO` of its chunks goes (L1EvictionController, eviction policy LRU).
Until then a write that finds no room keeps nothing, and what a second tier has cannot be loaded
either (L1Manager.reserve_write, PrefetchController). So hits depend on when the loop runs: the
same requests at the same times have a range of them. Its log tells each time that memory was freed.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import count, islice, pairwise
from pathlib import Path

from loadgen.locality.tier_replay import EnginePrefixCache, computed_after_steps, leading
from loadgen.locality.trace import Chain, Trace

TRIGGER, RATIO, PERIOD_S = 0.8, 0.2, 1.0
PHASES = 50
"""Moments of the first round of the loop that are tried, evenly over a period."""


@dataclass(frozen=True, slots=True)
class ServedAt:
    """When a request was sent, its prompt was computed and its first token came, and it ended."""

    sent_s: float
    first_token_s: float
    end_s: float


_FREES = re.compile(r"\[(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3})\] .*triggering eviction")


def frees_in_log(log: Path, start_unix_s: float, end_s: float) -> list[float]:
    """Seconds since a run's start at which memory was freed until its end, from LMCache's log: its
    times are local ones to a millisecond. Raises OSError."""
    with log.open(errors="replace") as lines:
        found = [match[1] for match in map(_FREES.search, lines) if match]
    at = [datetime.strptime(each, "%Y-%m-%d %H:%M:%S,%f").timestamp() for each in found]
    return [unix_s - start_unix_s for unix_s in at if 0 <= unix_s - start_unix_s <= end_s]


def rounds_of(frees: Sequence[float]) -> Iterator[float]:
    """All rounds of the loop from a run's start on, without end, by some that freed memory; those
    between are spread evenly, as each takes a little longer than its period. Raises IndexError for
    none."""
    yield from (frees[0] - PERIOD_S * each for each in range(int(frees[0] / PERIOD_S), 0, -1))
    for one, other in pairwise(frees):
        parts = max(1, round((other - one) / PERIOD_S))
        yield from (one + (other - one) * part / parts for part in range(parts))
    yield from count(frees[-1], PERIOD_S)


@dataclass(frozen=True, slots=True)
class LmcacheTier:
    """Memory of LMCache's; behind it, where `is_backed`, a tier that holds all that the memory ever
    took, and gives it in no time."""

    memory_bytes: int
    chunk_bytes: int
    chunk_tokens: int
    is_backed: bool = False


class LmcacheReplay:
    """One request after the other. Chunks that a second tier gave are not kept in memory, and take
    none of it."""

    def __init__(
        self, trace: Trace, times: Sequence[ServedAt], engine_blocks: int, tier: LmcacheTier
    ) -> None:
        """`times` are of the trace's requests; a chunk is one block of the engine or more."""
        self._requests = [*zip(trace.chains, times, strict=True)]
        self._trace, self._engine_blocks, self._tier = trace, engine_blocks, tier

    def shares(self) -> list[float]:
        """Of the prompt tokens, 0 to 1, those that need no computing, lowest first: one for each
        moment at which the loop may have begun. Raises UsageError for requests side by side."""
        begins = (PERIOD_S * phase / PHASES for phase in range(PHASES))
        return sorted(self.share(count(begin, PERIOD_S)) for begin in begins)

    def share(self, rounds_s: Iterator[float]) -> float:
        """The same where these are the moments of the loop, without end."""
        cache = EnginePrefixCache(self._trace, self._engine_blocks)
        memory = _Memory(self._tier, rounds_s)
        tokens = sum(self._serve(cache, memory, *each) for each in self._requests)
        return tokens / self._trace.prompt_tokens

    def _serve(
        self, cache: EnginePrefixCache, memory: "_Memory", request: Chain, at: ServedAt
    ) -> int:
        """The tokens of its prompt that are not computed."""
        size = self._tier.chunk_tokens
        each = size // self._trace.block_size
        chunks = request.blocks[each - 1 :: each]
        memory.run_loop(at.sent_s)
        found, known = cache.find(request), memory.leading(chunks)
        cache.serve(request, found)
        memory.run_loop(at.first_token_s)
        had_tokens, kept = max(len(found) * self._trace.block_size, known * size), known
        for computed in computed_after_steps(self._trace, request, had_tokens):
            memory.store(chunks[kept : computed // size])
            kept = computed // size
        memory.run_loop(at.end_s)
        memory.use(chunks)
        return min(had_tokens, request.prompt_tokens - 1)


class _Memory:
    """Names of chunks, the least recently used first, and of those in the tier behind."""

    def __init__(self, tier: LmcacheTier, rounds_s: Iterator[float]) -> None:
        self._tier, self._rounds_s, self._next_s = tier, rounds_s, next(rounds_s)
        self._most = tier.memory_bytes // tier.chunk_bytes
        self._names: dict[int, None] = {}
        self._behind: set[int] = set()

    def run_loop(self, until_s: float) -> None:
        while self._next_s <= until_s:
            self._next_s = next(self._rounds_s)
            if len(self._names) * self._tier.chunk_bytes >= TRIGGER * self._tier.memory_bytes:
                for name in [*islice(self._names, max(1, int(RATIO * len(self._names))))]:
                    del self._names[name]

    def leading(self, names: Sequence[int]) -> int:
        """How many of a prompt are had, from its start on."""
        known = leading(names, self._names.keys() | self._behind)
        far = sum(name not in self._names for name in names[:known])
        if len(self._names) + far > self._most:
            known = leading(names, self._names)
        self.use(names[:known])
        return known

    def store(self, names: Sequence[int]) -> None:
        """All or none; what the memory takes the tier behind gets, too."""
        new = [name for name in names if name not in self._names]
        if len(self._names) + len(new) <= self._most:
            self._names |= dict.fromkeys(reversed(new))
            if self._tier.is_backed:
                self._behind.update(new)

    def use(self, names: Sequence[int]) -> None:
        """Those of them that it has; the first is the most recently used."""
        for name in reversed(names):
            if name in self._names:
                del self._names[name]
                self._names[name] = None
