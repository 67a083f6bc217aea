"""Eviction policies on two traces of contexts: what a tier of bounded bytes then has.

A context is read from its beginning to the first chunk that is not there; the rest is computed and
kept. Nothing is timed: the seconds are those that computing would take.
"""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from kv_tiers.store.evictions import EVICTIONS
from kv_tiers.store.evictions.eviction import TierEviction
from kv_tiers.trials.figures import NetworkFigure

QUESTION = "eviction"
SCAN, SIZES = "popular contexts and scans", "sizes that differ"
ZIPF = 0.9
CODEC_SIZES = (1.0, 0.56, 0.31)
"""Bytes of a chunk as raw, int8 and int4 over those of raw."""
CHUNK_BYTES, CHUNK_S = 1_000_000, 0.5
LONGER_EACH = 0.05
"""Each later chunk of a context takes longer to compute, by this share of the first one's time:
attention reads all before it."""


@dataclass(frozen=True, slots=True)
class EvictionPlan:
    """Requests of each trace, capacities as shares of all bytes that are popular, and repeats."""

    requests: int = 4000
    contexts: int = 300
    capacities: tuple[float, ...] = (0.1, 0.3, 0.6)
    repeats: int = 3


@dataclass(frozen=True, slots=True)
class TracedChunk:
    """Of a context: its key, and what keeping and computing it costs."""

    key: bytes
    size: int
    recompute_s: float


Context = tuple[TracedChunk, ...]


def evict(plan: EvictionPlan) -> Iterator[NetworkFigure]:
    """`byte_hit_share` and `saved_share`, of the seconds of computing, by policy."""
    for repeat in range(plan.repeats):
        for trace, make in TRACES.items():
            popular, requests = make(plan, random.Random(repeat))
            whole = sum(chunk.size for context in popular for chunk in context)
            for share, (name, policy) in product(plan.capacities, EVICTIONS.items()):
                tier = TracedTier(policy(int(share * whole)))
                for context in requests:
                    tier.ask(context)
                setting = f"{trace}, {100 * share:g} %"
                for measure in ("byte_hit_share", "saved_share"):
                    value = getattr(tier, measure)
                    yield NetworkFigure(QUESTION, name, setting, measure, value, repeat)


class TracedTier:
    """Sizes of what a tier has, and what its hits were worth."""

    def __init__(self, policy: TierEviction) -> None:
        self._policy, self._sizes, self._bytes = policy, dict[bytes, int](), 0
        self._asked, self._hit = [0.0, 0.0], [0.0, 0.0]

    @property
    def byte_hit_share(self) -> float:
        """Of the bytes asked for."""
        return self._hit[0] / self._asked[0]

    @property
    def saved_share(self) -> float:
        """Of the seconds that computing all would take."""
        return self._hit[1] / self._asked[1]

    def ask(self, context: Context) -> None:
        """Read its prefix, and keep what is not there."""
        is_prefix = True
        for chunk in context:
            is_here = chunk.key in self._sizes
            is_prefix = is_prefix and is_here
            for sums in (self._asked, *([self._hit] if is_prefix else [])):
                sums[0] += chunk.size
                sums[1] += chunk.recompute_s
            if not is_here:
                self._keep(chunk)
        self._policy.use_context([chunk.key for chunk in context if chunk.key in self._sizes])

    def _keep(self, chunk: TracedChunk) -> None:
        if chunk.size > self._policy.capacity_bytes:
            return
        while self._bytes + chunk.size > self._policy.capacity_bytes:
            self._bytes -= self._sizes.pop(self._policy.victim())
        self._sizes[chunk.key] = chunk.size
        self._bytes += chunk.size
        self._policy.add(chunk.key, chunk.size, chunk.recompute_s)


def _context(name: str, chunks: int, size: float) -> Context:
    return tuple(
        TracedChunk(
            f"{name}, chunk {at}".encode(),
            int(CHUNK_BYTES * size),
            CHUNK_S * (1 + LONGER_EACH * at),
        )
        for at in range(chunks)
    )


def _drawn(popular: Sequence[Context], count: int, rng: random.Random) -> list[Context]:
    weights = [1 / (rank + 1) ** ZIPF for rank in range(len(popular))]
    return rng.choices(popular, weights, k=count)


def _with_scans(plan: EvictionPlan, rng: random.Random) -> tuple[list[Context], list[Context]]:
    """Contexts of equal size by Zipf's law; after every tenth of the requests, half as many
    contexts that are read once."""
    popular = [_context(f"popular {at}", 10, 1.0) for at in range(plan.contexts)]
    hot = _drawn(popular, plan.requests * 2 // 3, rng)
    part = max(1, len(hot) // 10)
    requests: list[Context] = []
    for begin in range(0, len(hot), part):
        requests += hot[begin : begin + part]
        requests += [_context(f"once {begin + at}", 10, 1.0) for at in range(part // 2)]
    return popular, requests


def _of_sizes(plan: EvictionPlan, rng: random.Random) -> tuple[list[Context], list[Context]]:
    """Contexts of 2 to 40 chunks, in frames of different codecs, by Zipf's law."""
    popular = [
        _context(f"context {at}", rng.randint(2, 40), rng.choice(CODEC_SIZES))
        for at in range(plan.contexts)
    ]
    return popular, _drawn(popular, plan.requests, rng)


Maker = Callable[[EvictionPlan, random.Random], tuple[list[Context], list[Context]]]
TRACES: Mapping[str, Maker] = {SCAN: _with_scans, SIZES: _of_sizes}
