"""One pass over a sequential trace gives the hits of every cache size."""

import math
from array import array
from bisect import bisect_left
from dataclasses import dataclass
from itertools import chain, count

from loadgen.locality.trace import Chain, Trace
from loadgen.workload.diversity import Recency


@dataclass(frozen=True, slots=True)
class Visit:
    """One request: `depths` are the LRU stack distances of the blocks it may take from a cache,
    which rise along the chain; `held` blocks it needs, of which `full` ones stay known by name."""

    depths: "array[int]"
    held: int
    full: int


class LruStack:
    """Stack distances of a trace at the granularity of blocks (Mattson, Gecsei, Slutz and Traiger,
    "Evaluation techniques for storage hierarchies", IBM Systems Journal 9(2), 1970).

    vLLM frees a request's blocks from the tail on, so that of one request the first block is the
    most recently used, and a cache of any size holds the top of one and the same stack: without
    requests side by side it is a stack algorithm. Two things differ from a plain LRU: a block that
    is not full is reused before all others, which leaves one place less to known blocks, and a
    prompt that fills its last block computes that one again although it is known. The second copy
    stays until it is evicted; which of the two is taken first may shift hits by one block.
    """

    def __init__(self, trace: Trace) -> None:
        self._block_size = trace.block_size
        self._recency = Recency()
        self._newest: dict[int, int] = {}
        self._fresh = count()
        self.visits = [self._visit(request) for request in trace.chains]

    @property
    def deepest(self) -> int:
        """The largest distance at which a block is used again, in blocks; -1 without reuse."""
        return max((visit.depths[-1] for visit in self.visits if visit.depths), default=-1)

    def reuse_distance(self, share: float) -> int:
        """The distance in blocks up to which this share of all uses but the first lies."""
        distances = sorted(chain.from_iterable(visit.depths for visit in self.visits))
        return distances[math.ceil(share * len(distances)) - 1] if distances else 0

    def share_within(self, blocks: int) -> float | None:
        """The share of all uses but the first that lie within so many blocks; None without any."""
        distances = [each for visit in self.visits for each in visit.depths]
        near = sum(each < blocks for each in distances)
        return near / len(distances) if distances else None

    def cached_tokens(self, blocks: int | None) -> int:
        """Prompt tokens of all requests that a cache of so many blocks has; None is no limit.

        The cache is empty at first, and holds the longest request.
        """
        known = hits = 0
        for visit in self.visits:
            found = len(visit.depths) if blocks is None else bisect_left(visit.depths, known)
            hits += found
            if blocks is not None:
                known = visit.full + min(known - found, blocks - visit.held)
        return hits * self._block_size

    def _visit(self, request: Chain) -> Visit:
        """Uses the blocks from the tail on, as they are freed. Those of the request used before a
        block were below it in the stack or not there, so its distance counts each of them."""
        full, held = (
            request.kept_tokens // self._block_size,
            -(-request.kept_tokens // self._block_size),
        )
        usable = (request.prompt_tokens - 1) // self._block_size
        for _ in range(full - len(request.blocks)):  # filled by the reply, which no prompt repeats
            self._recency.use(next(self._fresh))
        depths: list[int] = []
        for place in reversed(range(len(request.blocks))):
            distance = self._use(request.blocks[place], copied=place >= usable)
            if distance is not None and place < usable:
                depths.append(distance - (full - 1 - place))
        return Visit(array("q", reversed(depths)), held, full)

    def _use(self, name: int, copied: bool) -> int | None:
        if copied or name not in self._newest:
            self._newest[name] = next(self._fresh)
        return self._recency.use(self._newest[name])
