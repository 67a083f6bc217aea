"""A context's chunks in order, each in the finest encoding for which link and deadline leave time.

After CacheGen (Liu et al., 2024): the bandwidth is that of the chunk before. Where not even the
coarsest encoding of the next chunk would come in time the load ends, and the rest is computed.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Coroutine, Sequence

ADAPTIVE = "adaptive"
LEVELS = ("lossless", "int8", "int4")
"""Codecs of one chunk that are all kept, from the finest on."""
FIRST_SHARES = (0.7, 0.57, 0.32)
"""Bytes of an encoding over those of the chunk, until one has been seen."""
FIRST_LEVEL = 1
"""Over a link of which nothing is known."""
COARSEST = len(LEVELS) - 1
SPARE = 0.1
"""Of the time until the deadline: for decoding the last chunk, and for a link that falls."""

Fetch = Callable[[int, int], Awaitable[bytes | None]]
"""The frame of the chunk at this place and level."""
Decode = Callable[[int, int, bytes], Coroutine[None, None, None]]


def level_key(key: bytes, level: int) -> bytes:
    """The finest lies under the chunk's own key, where those look who have one codec."""
    return key + b"/" + LEVELS[level].encode() if level else key


class AdaptiveLoader:
    """Learns sizes of levels and the rate of the link from each chunk that comes."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.bytes_per_s: float | None = None
        """Of the latest chunk, with what decoding the one before it held up."""
        self.loaded = dict.fromkeys(LEVELS, 0)
        """Chunks by level."""
        self._shares = [*FIRST_SHARES]
        self._clock = clock

    def level(
        self, sizes: Sequence[int], left_s: float, spare_s: float, missing: Collection[int] = ()
    ) -> int | None:
        """At which all chunks of these sizes, before coding, come in time with some to spare; the
        coarsest where only the next one does, and None where none does. Of levels that are
        `missing` the finest comes."""
        if self.bytes_per_s is None:
            return 0 if FIRST_LEVEL in missing else FIRST_LEVEL
        possible = self.bytes_per_s * (left_s - spare_s)
        kept = [level for level in range(len(LEVELS)) if level not in missing]
        for level in kept:
            if self._shares[level] * sum(sizes) <= possible:
                return level
        next_s = self._shares[kept[-1]] * sizes[0] / self.bytes_per_s
        return kept[-1] if next_s <= left_s else None

    async def load(
        self,
        sizes: Sequence[int],
        fetch: Fetch,
        decode: Decode,
        deadline_s: float,
        near: Collection[int] = (),
    ) -> None:
        """One chunk after the other, and each decoded while the next one comes. The first one is
        always asked for: nothing else tells that a slow link has become faster. Those that were
        `near` by the time they have come tell nothing of it. A level that was not there once is not
        asked for again: not all chunks can be kept at all levels."""
        begun_s = self._clock()
        missing: set[int] = set()
        async with asyncio.TaskGroup() as group:
            decoding: asyncio.Task[None] | None = None
            for at in range(len(sizes)):
                since_s = self._clock()
                left_s = begun_s + deadline_s - since_s
                asked = self.level(sizes[at:], left_s, SPARE * deadline_s, missing)
                if asked is None and at:
                    return
                asked = COARSEST if asked is None else asked
                level, frame = await _fetched(at, asked, fetch)
                if decoding is not None:
                    await decoding
                if frame is not None:
                    missing |= {asked} - {level}
                    if at not in near:
                        self.bytes_per_s = len(frame) / max(self._clock() - since_s, 1e-6)
                    self._shares[level] = len(frame) / max(sizes[at], 1)
                    self.loaded[LEVELS[level]] += 1
                    decoding = group.create_task(decode(at, level, frame))


async def _fetched(at: int, level: int, fetch: Fetch) -> tuple[int, bytes | None]:
    """A level that a node has given up, or that was never written, is had as the finest."""
    frame = await fetch(at, level)
    return (level, frame) if frame is not None or not level else (0, await fetch(at, 0))
