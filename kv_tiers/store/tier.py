"""A tier of KV behind somebody's memory: prefixes looked up, chunks kept and loaded in time.

It knows neither engine nor cache server: chunks are bytes under keys of whole prefixes.
"""

import asyncio
import contextlib
import logging
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import fields
from functools import partial
from itertools import chain, islice, takewhile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kv_tiers.codecs import FrameError
from kv_tiers.store.adaptive import ADAPTIVE, LEVELS, AdaptiveLoader, level_key
from kv_tiers.store.coder import ChunkCoder, RawChunk
from kv_tiers.store.evictions import EVICTIONS
from kv_tiers.store.placement import StoreKey, in_runs
from kv_tiers.store.placements import PLACEMENTS
from kv_tiers.store.regional import RegionalStore, RegionalTally
from kv_tiers.store.settings import TierSettings, follow
from kv_tiers.store.sharded import ShardedStore, StoreTally
from kv_tiers.store.spilling import SpillingStore, SpillTally

SPILL_TIMEOUT_S = 5.0
MOST_PLACES = 200_000
PROBE_EVERY = 8
"""Of lookups that loading would not pay for, one in so many is answered: the link may be faster
now."""
LONG = 0.9
"""Of a deadline: a load that took as long was ended by it."""
RATE_WEIGHT = 0.3
"""Of the latest load in the learned rate."""
_LOG = logging.getLogger(__name__)
CHANGING = ("nodes", "load_deadline_s", "recompute_chunks_per_s", "codec", "level")
"""What the file of settings may change while the tier serves."""
OF_CODERS = ("codec", "level")
MOST_TOLD = 100
Keep = Callable[[int, NDArray[np.uint8] | None], None]


class RemoteTier:
    """A ShardedStore used by prefixes, with a codec and deadlines. `async with` follows the file
    of changing settings, where there is one, and ends the store."""

    def __init__(self, settings: TierSettings, changes: Path | None = None) -> None:
        """Raises ValueError."""
        self.settings = settings
        self.load_chunks_per_s: float | None = None
        """Learned from what came from afar."""
        self._coders = _coders(settings)
        """Of each level: several where the codec is adaptive."""
        self._adaptive = AdaptiveLoader()
        placement = PLACEMENTS[settings.placement]()
        sharded = partial(ShardedStore, copies=settings.copies, placement=placement)
        self._store = sharded(settings.nodes, node_deadline_s=settings.node_deadline_s)
        self._stores = [self._store]
        self._regional: RegionalStore | None = None
        if settings.central:
            central = sharded(settings.central, node_deadline_s=settings.central_deadline_s)
            self._stores.append(central)
            self._regional = RegionalStore(
                self._store,
                central,
                force_latest=settings.force_latest,
                exchange_s=settings.exchange_s,
            )
        far = self._regional or self._store
        self._near: SpillingStore | None = None
        if settings.near_bytes:
            eviction = EVICTIONS[settings.eviction](settings.near_bytes)
            self._near = SpillingStore(far, eviction)
        self._frames = self._near or far
        self._changes = changes
        self._storing = asyncio.Semaphore(settings.at_once)
        self._declined = 0
        self._told: set[str] = set()
        self._names: OrderedDict[bytes, StoreKey] = OrderedDict()
        self._tasks: list[asyncio.Task[Any]] = []

    async def __aenter__(self) -> "RemoteTier":
        if self._changes is not None:
            self._tasks.append(asyncio.create_task(follow(self._changes, self.change)))
        if self._regional is not None:
            await self._regional.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        try:
            if self._near is not None:
                await self._spill(self._near)
            if self._regional is not None:
                await self._regional.__aexit__()
        finally:
            for store in self._stores:
                await store.aclose()

    def status(self) -> dict[str, Any]:
        """For people: what is set, and what has happened."""
        tallies: list[StoreTally | SpillTally | RegionalTally] = [self._store.tally]
        tallies += [each.tally for each in (self._near, self._regional) if each is not None]
        return {
            "nodes": list(self._store.nodes),
            "broken_nodes": [node for store in self._stores for node in store.broken()],
            "is_moving": self._store.is_moving,
            "codec": self.settings.codec,
            "load_deadline_s": self.settings.load_deadline_s,
            "load_chunks_per_s": self.load_chunks_per_s,
            "load_bytes_per_s": self._adaptive.bytes_per_s,
            "adaptive_chunks": self._adaptive.loaded,
            **{each.name: getattr(of, each.name) for of in tallies for each in fields(of)},
        }

    async def lookup(self, rows: Sequence[Sequence[bytes]]) -> list[int]:
        """Of each row, all chunks of a context in their order: how many from its start are there,
        and worth loading."""
        there = iter(await self.held(rows))
        return [sum(takewhile(bool, [*islice(there, len(row))])) for row in rows]

    async def held(self, rows: Sequence[Sequence[bytes]]) -> list[bool]:
        """Of each chunk of these rows, one row after the other, whether it is there, and worth
        loading."""
        found = await asyncio.gather(*map(self._there, rows))
        names = map(self._named, chain.from_iterable(rows))
        return self._worth_loading([*names], [*chain.from_iterable(found)])

    async def there(self, keys: Sequence[bytes]) -> list[bool]:
        """Which of these chunks, each placed by itself, are there and worth loading."""
        names = [*map(StoreKey.alone, keys)]
        return self._worth_loading(names, await self._frames.has(names))

    async def store(self, keys: Sequence[bytes], chunks: Sequence[RawChunk]) -> list[int]:
        """The bytes kept of each chunk, 0 of one that could not be. No chunk is put once this has
        returned or raised: its memory may be another's then."""
        async with asyncio.TaskGroup() as group:
            pairs = zip(keys, chunks, strict=True)
            storing = [group.create_task(self._store_one(*each)) for each in pairs]
        self._note_use(keys)
        return [each.result() for each in storing]

    async def load(
        self,
        keys: Sequence[bytes],
        like: Sequence[RawChunk],
        take: Callable[[int, NDArray[np.uint8]], None],
    ) -> None:
        """Call `take` with the index and bytes of each chunk that comes whole before the deadline,
        the first ones first; it is not called once this has returned."""
        begun, near, taken = time.monotonic(), set[int](), set[int]()

        def keep(at: int, content: NDArray[np.uint8] | None) -> None:
            if content is not None:
                take(at, content)
                taken.add(at)

        load = self._load_all if len(self._coders) == 1 else self._load_in_order
        try:
            async with asyncio.timeout(self.settings.load_deadline_s):
                await load(keys, like, keep, near)
        except TimeoutError:
            _LOG.debug("a load ends at its deadline with %d of %d chunks", len(taken), len(keys))
        self._note_use(keys)
        if len(near) < len(keys):
            self._learn(len(taken - near), time.monotonic() - begun)

    def change(self, changes: Mapping[str, Any]) -> None:
        """Have these settings from now on. Raises ValueError, and changes nothing."""
        if unknown := sorted(changes.keys() - set(CHANGING)):
            raise ValueError(f"{unknown[0]!r} cannot change here, only {', '.join(CHANGING)} can")
        whole = {each.name: getattr(self.settings, each.name) for each in fields(TierSettings)}
        settings = TierSettings.of({**whole, **changes})
        same = all(getattr(settings, each) == getattr(self.settings, each) for each in OF_CODERS)
        coders = self._coders if same else _coders(settings)
        if settings.nodes != self.settings.nodes:
            self._store.set_nodes(settings.nodes)
            self._tasks = [task for task in self._tasks if not task.done()]
            self._tasks.append(asyncio.create_task(self._store.move()))
        self.settings, self._coders = settings, coders

    async def _load_all(
        self, keys: Sequence[bytes], like: Sequence[RawChunk], keep: Keep, near: set[int]
    ) -> None:
        window, coder = asyncio.Semaphore(self.settings.at_once), self._coders[0]

        async def one(at: int) -> None:
            async with window:
                frame = await self._fetched(self._named(keys[at]), at, near)
                if frame is not None:
                    keep(at, await self._content(coder, frame, keys[at], like[at]))

        async with asyncio.TaskGroup() as group:
            for at in range(len(keys)):
                group.create_task(one(at))

    async def _load_in_order(
        self, keys: Sequence[bytes], like: Sequence[RawChunk], keep: Keep, near: set[int]
    ) -> None:
        coders = self._coders

        def fetch(at: int, level: int) -> Awaitable[bytes | None]:
            return self._fetched(self._named(keys[at], level), at, near)

        async def decode(at: int, level: int, frame: bytes) -> None:
            key = level_key(keys[at], level)
            keep(at, await self._content(coders[level], frame, key, like[at]))

        sizes = [len(each.content) for each in like]
        await self._adaptive.load(sizes, fetch, decode, self.settings.load_deadline_s, near)

    def _fetched(self, name: StoreKey, at: int, near: set[int]) -> Awaitable[bytes | None]:
        """With whether the chunk at this place was near before."""
        (near.add if self._frames.is_near(name) else near.discard)(at)
        return self._frames.get(name)

    async def _spill(self, near: SpillingStore) -> None:
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(SPILL_TIMEOUT_S):
                    await near.spill()
        finally:
            await near.aclose()

    async def _there(self, row: Sequence[bytes]) -> list[bool]:
        """Chunks that were kept before their run was known lie by themselves."""
        names = in_runs(row, self.settings.run_chunks)
        there = await self._frames.has(names)
        apart = [at for at, has in enumerate(there) if not has and names[at].place != row[at]]
        if apart:
            alone = [StoreKey.alone(row[at]) for at in apart]
            for at, name, has in zip(apart, alone, await self._frames.has(alone), strict=True):
                if has:
                    names[at], there[at] = name, True
        for name in names:
            self._remember(name)
        return there

    def _remember(self, name: StoreKey) -> None:
        self._names[name.key] = name
        self._names.move_to_end(name.key)
        if len(self._names) > MOST_PLACES:
            self._names.popitem(last=False)

    def _note_use(self, keys: Sequence[bytes]) -> None:
        if self._near is not None:
            self._near.use([*map(self._named, keys)])

    def _named(self, key: bytes, level: int = 0) -> StoreKey:
        name = self._names.get(key) or StoreKey.alone(key)
        return StoreKey(level_key(key, level), name.place)

    async def _store_one(self, key: bytes, chunk: RawChunk) -> int:
        """The finest level last: lookups ask for it, and find the others there."""
        sizes = [0]
        async with self._storing:
            for level, coder in reversed([*enumerate(self._coders)]):
                name = self._named(key, level)
                try:
                    frame = await asyncio.to_thread(coder.frame, chunk, name.key)
                except ValueError as error:
                    if level:
                        self._tell_once("chunks are not kept at every level", error)
                        continue
                    self._tell_once(f"chunks are not kept: {error}")
                    return 0
                sizes.append(len(frame) if await self._frames.put(name, frame) else 0)
        return sum(sizes) if sizes[-1] else 0

    def _tell_once(self, said: str, error: ValueError | None = None) -> None:
        """It is mostly so for all chunks of an engine."""
        if said not in self._told and len(self._told) < MOST_TOLD:
            self._told.add(said)
            _LOG.warning("%s", said if error is None else f"{said}: {error}")

    async def _content(
        self, coder: ChunkCoder, frame: bytes, key: bytes, like: RawChunk
    ) -> NDArray[np.uint8] | None:
        try:
            return await asyncio.to_thread(coder.content, frame, key, like)
        except FrameError as error:
            # Whole, but of a codec or size that is not ours: for others it may be right.
            _LOG.warning("a chunk was not loaded: %s", error)
            return None

    @property
    def _deadlines_s(self) -> tuple[float, float]:
        return self.settings.node_deadline_s, self.settings.load_deadline_s

    def _worth_loading(self, names: Sequence[StoreKey], found: list[bool]) -> list[bool]:
        """What is near always is."""
        near = [has and self._frames.is_near(name) for name, has in zip(names, found, strict=True)]
        return found if near == found or self._is_worth_loading() else near

    def _is_worth_loading(self) -> bool:
        load, recompute = self.load_chunks_per_s, self.settings.recompute_chunks_per_s
        if load is None or load >= recompute:
            return True
        self._declined += 1
        return self._declined % PROBE_EVERY == 0

    def _learn(self, chunks: int, elapsed_s: float) -> None:
        """Where nothing came at once, nothing was there; a link that brings nothing takes long."""
        if not chunks and elapsed_s < min(LONG * each for each in self._deadlines_s):
            return
        rate, before = chunks / max(elapsed_s, 1e-6), self.load_chunks_per_s
        self.load_chunks_per_s = rate if before is None else before + RATE_WEIGHT * (rate - before)


def _coders(settings: TierSettings) -> tuple[ChunkCoder, ...]:
    profile = Path(settings.profile) if settings.profile else None
    names = LEVELS if settings.codec == ADAPTIVE else (settings.codec,)
    try:
        return tuple(ChunkCoder(name, settings.level, profile) for name in names)
    except OSError as error:
        raise ValueError(f"no profile in {profile}: {error}") from error
