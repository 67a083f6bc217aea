"""The cache curve: hit rate against cache size, and how much cache is enough."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from loadgen.errors import UsageError
from loadgen.locality.lru_stack import LruStack
from loadgen.locality.replay import CacheReplay
from loadgen.locality.tier_replay import TierHits, TierReplay
from loadgen.locality.trace import Trace

ENOUGH = 0.99
"""The share of the attainable hit rate at which more cache is not worth naming."""
GRID_POINTS = 16


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """What a cache of this size does for the whole trace: `hit_rate` is the share, 0 to 1, of
    prompt tokens that are taken from it or from the tier behind it, `computed_tokens` are the
    others. `tier_tokens` of the cached ones are from the tier."""

    tokens: int
    blocks: int
    hit_rate: float
    cached_tokens: int
    computed_tokens: int
    tier_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Knee:
    """Sizes in tokens. `least` holds the longest request, below which no engine starts; `enough`
    is the smallest with 99 % of the attainable hit rate, `working_set` the smallest with all of
    it. 99 % of what is used again is used again before `reuse` tokens of other blocks.
    """

    least_tokens: int
    enough_tokens: int
    working_set_tokens: int
    reuse_tokens: int


@dataclass(frozen=True, slots=True)
class CacheCurve:
    """The curve of one trace. `bound` is the hit rate, 0 to 1, that no cache exceeds: each block
    has to be computed once (compulsory misses)."""

    trace: Trace
    points: tuple[CurvePoint, ...]
    bound: float
    knee: Knee
    _at: Callable[[int], CurvePoint]

    @property
    def prompt_tokens(self) -> int:
        """Of all requests together."""
        return self.trace.prompt_tokens

    def at(self, tokens: int) -> CurvePoint:
        """The point at any size. Raises UsageError for one that does not hold every request."""
        return self._at(tokens)


def predict(
    trace: Trace, capacities_tokens: Sequence[int] = (), *, tier_tokens: int | None = None
) -> CacheCurve:
    """The curve at these sizes, or at some from the least to the working set.

    One request after the other it is what vLLM's block pool does but for second copies of a block
    (see LruStack); with requests side by side it is an estimate (see CacheReplay). Sizes are
    rounded up to whole blocks. With `tier_tokens`, rounded down, the points are those of caches
    with so much of vLLM's own host memory behind them (see TierReplay), for one request after the
    other; bound and knee are of the cache alone.

    Raises UsageError for an empty trace, or a size that cannot serve it.
    """
    if not trace.chains:
        raise UsageError("no request was sent: a cache curve needs at least one")
    return _Curve(trace, tier_tokens).drawn(capacities_tokens)


class _Curve:
    """Cached tokens by cache size, each size computed once."""

    def __init__(self, trace: Trace, tier_tokens: int | None) -> None:
        self._trace = trace
        self._tier_tokens = tier_tokens
        self._stack = LruStack(trace)
        self._known: dict[int, int] = {}
        self._most_blocks = self._sufficient()
        self._bound_tokens = self._cached(self._most_blocks)

    def drawn(self, capacities_tokens: Sequence[int]) -> CacheCurve:
        knee = self._knee()
        sizes = capacities_tokens or self._grid(knee)
        return CacheCurve(
            trace=self._trace,
            points=tuple(self.point(tokens) for tokens in sizes),
            bound=self._bound_tokens / self._trace.prompt_tokens,
            knee=knee,
            _at=self.point,
        )

    def point(self, tokens: int) -> CurvePoint:
        size, least = self._trace.block_size, self._trace.least_blocks
        blocks = -(-tokens // size)
        if blocks < least:
            raise UsageError(
                f"a cache of {tokens} tokens does not hold the longest request:"
                f" give at least {least * size}"
            )
        hits = self._hits(blocks)
        cached, prompt_tokens = hits.engine_tokens + hits.tier_tokens, self._trace.prompt_tokens
        return CurvePoint(
            tokens=blocks * size,
            blocks=blocks,
            hit_rate=cached / prompt_tokens,
            cached_tokens=cached,
            computed_tokens=prompt_tokens - cached,
            tier_tokens=hits.tier_tokens,
        )

    def _hits(self, blocks: int) -> TierHits:
        if self._tier_tokens is None:
            return TierHits(self._cached(blocks), 0)
        size = self._trace.block_size
        if self._tier_tokens < size:
            raise UsageError(
                f"a tier of {self._tier_tokens} tokens holds no block: give {size} or more"
            )
        enough = sum(-(-chain.kept_tokens // size) for chain in self._trace.chains)
        return TierReplay(self._trace, min(blocks, enough), self._tier_tokens // size).run()

    def _cached(self, blocks: int) -> int:
        blocks = min(blocks, self._most_blocks)
        if blocks not in self._known:
            self._known[blocks] = (
                self._stack.cached_tokens(blocks)
                if self._trace.is_sequential
                else CacheReplay(self._trace, blocks).run().cached_tokens
            )
        return self._known[blocks]

    def _sufficient(self) -> int:
        """Blocks of which more are of no use."""
        if self._trace.is_sequential:
            return self._stack.deepest + 1 + self._trace.least_blocks
        size = self._trace.block_size
        return sum(-(-chain.kept_tokens // size) for chain in self._trace.chains)

    def _knee(self) -> Knee:
        size = self._trace.block_size
        return Knee(
            least_tokens=self._trace.least_blocks * size,
            enough_tokens=self._smallest(math.ceil(ENOUGH * self._bound_tokens)) * size,
            working_set_tokens=self._smallest(self._bound_tokens) * size,
            reuse_tokens=self._stack.reuse_distance(ENOUGH) * size,
        )

    def _smallest(self, cached_tokens: int) -> int:
        """Blocks that give so many cached tokens. Bisection is right where more blocks never give
        less: of a stack always, of requests side by side nearly."""
        low, high = self._trace.least_blocks, max(self._most_blocks, self._trace.least_blocks)
        while low < high:
            middle = (low + high) // 2
            if self._cached(middle) >= cached_tokens:
                high = middle
            else:
                low = middle + 1
        return low

    def _grid(self, knee: Knee) -> list[int]:
        """Even steps from the least size to a tenth beyond the working set, with the knee."""
        size = self._trace.block_size
        least, most = self._trace.least_blocks, knee.working_set_tokens * 11 // (10 * size) + 1
        steps = min(GRID_POINTS, most - least)
        even = {least + (most - least) * step // steps for step in range(steps + 1)}
        return sorted({blocks * size for blocks in even} | {knee.enough_tokens})
