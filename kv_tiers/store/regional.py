"""A store of its own for a region, and one for all regions behind a slow link.

A key stands for the content of its chunk and never changes its meaning, so that no copy is ever
wrong. What can be stale is a region: it does not find what another one has put, or still has what
another one has deleted. Reading through finds the first as soon as the centre has it; of the second
a region must be told, by exchanges of its own or by rounds of the centre.
"""

import asyncio
import struct
import time
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol, Self, TypeVar

from kv_tiers.store.nodes import JOURNAL_START, Clock, JournalPart
from kv_tiers.store.placement import StoreKey

MOST_WAITING_BYTES = 64 << 20
MOST_CHANGES = 100_000
"""That are remembered, or owed to a store that does not answer."""
WRITES_AT_ONCE = 4
RETRY_S, CLOSE_S = 1.0, 4.0
_HEAD = struct.Struct("<Q?I")
_Value = TypeVar("_Value")


class FrameStore(Protocol):
    """What regions and centre are: a ShardedStore, or what has these methods of it."""

    async def put(self, name: StoreKey, frame: bytes) -> int: ...
    async def get(self, name: StoreKey) -> bytes | None: ...
    async def known(self, names: Sequence[StoreKey]) -> list[bool | None]: ...
    async def delete(self, name: StoreKey) -> bool: ...
    async def note(self, entry: bytes) -> bool: ...
    async def notes(self, position: bytes) -> JournalPart | None: ...


@dataclass(frozen=True, slots=True)
class StoreChange:
    """A chunk was put or deleted. `version`: nanoseconds of its maker's clock; of two changes of a
    chunk the later one counts, so that clocks must agree to well under a period."""

    name: StoreKey
    version: int
    is_deletion: bool = False

    @property
    def packed(self) -> bytes:
        """As an entry of a journal."""
        head = _HEAD.pack(self.version, self.is_deletion, len(self.name.key))
        return head + self.name.key + self.name.place

    @classmethod
    def of(cls, entry: bytes) -> Self | None:
        """None of what is no such entry."""
        if len(entry) < _HEAD.size:
            return None
        version, is_deletion, length = _HEAD.unpack_from(entry)
        names = entry[_HEAD.size :]
        return cls(StoreKey(names[:length], names[length:]), version, is_deletion)


class JournalReader:
    """Follows the journal of one store."""

    def __init__(self, store: FrameStore) -> None:
        self.gaps = 0
        """Entries had gone before they were read: deletions among them are not known."""
        self._store, self._position = store, JOURNAL_START
        self._untold: list[StoreChange] = []
        """Read before the store ceased to answer, or before the reading was cancelled."""

    async def new(self) -> list[StoreChange] | None:
        """All changes since the last time, in their order; None where the store does not answer."""
        while (part := await self._store.notes(self._position)) is not None:
            self.gaps += not part.is_whole
            if not part.entries:
                if not part.is_whole:
                    self._position = JOURNAL_START
                found, self._untold = self._untold, []
                return found
            self._position = part.entries[-1][0]
            changes = (StoreChange.of(entry) for _, entry in part.entries)
            self._untold += [change for change in changes if change is not None]
        return None


@dataclass(slots=True)
class WaitingWrite:
    """A change on its way to the centre; a deletion has no frame."""

    change: StoreChange
    frame: bytes | None
    is_done: bool = False
    """At the centre, whose journal has not heard of it yet."""

    @property
    def is_lost(self) -> bool:
        """Once it waits no more: of a deletion other regions must hear."""
        return self.frame is None or not self.is_done

    @property
    def size(self) -> int:
        """In bytes, with its name."""
        return len(self.frame or b"") + len(self.change.packed)


@dataclass(slots=True)
class RegionalTally:
    """What has happened; the two stores have tallies of their own."""

    regional_hits: int = 0
    central_hits: int = 0
    """Frames that came from the centre, and are in the region since."""
    written_back: int = 0
    """Changes that the centre has taken."""
    dropped_writes: int = 0
    """Changes that waited for the centre, and were too many or too long on their way."""
    unconfirmed: int = 0
    """Chunks of which the centre was asked first and did not tell."""


class RegionalStore:
    """Frames by their StoreKey in `region`, and behind it in `centre`.

    Writes are in the region at once, and at the centre later. `async with` writes them back as soon
    as the centre takes them, and exchanges changes with it every `exchange_s` (0: the centre tells
    the region, which looks for itself only before it deletes at the centre). Its end takes CLOSE_S
    at most for what still waits, and leaves both stores open.
    """

    def __init__(
        self,
        region: FrameStore,
        centre: FrameStore,
        *,
        force_latest: bool = False,
        exchange_s: float = 0.0,
        most_waiting_bytes: int = MOST_WAITING_BYTES,
        clock: Clock = time.time,
    ) -> None:
        """`force_latest` asks the centre first: a round trip and no bytes, since what it confirms
        may be read nearby."""
        self.tally = RegionalTally()
        self.waiting_bytes = 0
        self.journal = JournalReader(centre)
        self._region, self._centre, self._force_latest = region, centre, force_latest
        self._exchange_s, self._clock = exchange_s, clock
        self._most_waiting_bytes = most_waiting_bytes
        self._waiting: dict[bytes, WaitingWrite] = {}
        self._latest: dict[bytes, tuple[int, bool]] = {}
        """Versions of chunks that changed lately, and whether they were deleted."""
        self._here: dict[bytes, bool] = {}
        """Whether the region had a chunk when it was last asked or told."""
        self._owed: dict[bytes, StoreChange] = {}
        """Deletions of others that the region has not done yet."""
        self._last_version = 0
        self._something, self._writing = asyncio.Event(), asyncio.Lock()
        self._window = asyncio.Semaphore(WRITES_AT_ONCE)
        self._loops: list[asyncio.Task[None]] = []
        self._promotions: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        works: list[Coroutine[None, None, None]] = [self._keep_writing()]
        if self._exchange_s:
            works.append(self._keep_exchanging())
        self._loops = [asyncio.create_task(work) for work in works]
        return self

    async def __aexit__(self, *_: object) -> None:
        tasks = [*self._loops, *self._promotions]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_S):
                await self._send()
        for wire in [*self._waiting]:
            self._drop(wire)

    @property
    def waiting(self) -> int:
        """Changes on their way to the centre."""
        return len(self._waiting)

    async def put(self, name: StoreKey, frame: bytes) -> int:
        """The copies in the region, and one more where it waits for the centre."""
        change = self._change(name, is_deletion=False)
        copies = await self._region.put(name, frame)
        remember(self._here, name.wire, copies > 0)
        if copies:
            await self._region.note(change.packed)
        return copies + self._wait(WaitingWrite(change, frame))

    async def get(self, name: StoreKey) -> bytes | None:
        """From the region, or from the centre, and then it is in the region again."""
        wire = name.wire
        if (write := self._waiting.get(wire)) is not None:
            return write.frame
        if self._force_latest:
            (is_there,) = await self._centre.known([name])
            self.tally.unconfirmed += is_there is None
            if is_there is False:
                return None
        frame = await self._region.get(name)
        remember(self._here, wire, frame is not None)
        if frame is not None:
            self.tally.regional_hits += 1
            return frame
        before = self._latest.get(wire)
        if (frame := await self._centre.get(name)) is not None:
            self.tally.central_hits += 1
            task = asyncio.create_task(self._promote(name, frame, before))
            self._promotions.add(task)
            task.add_done_callback(self._promotions.discard)
        return frame

    async def has(self, names: Sequence[StoreKey]) -> list[bool]:
        """Of each, whether region or centre says so; with `force_latest` what the centre says,
        where it answers."""
        writes = [self._waiting.get(name.wire) for name in names]
        found = [None if each is None else each.frame is not None for each in writes]
        asked = [at for at, each in enumerate(found) if each is None]
        here = await self._region.known([names[at] for at in asked])
        for at, is_here in zip(asked, here, strict=True):
            remember(self._here, names[at].wire, bool(is_here))
            found[at] = is_here
        # That the region lacks it says nothing: the centre may have it.
        far = [at for at in asked if self._force_latest or not found[at]]
        told = await self._centre.known([names[at] for at in far])
        for at, is_there in zip(far, told, strict=True):
            found[at] = found[at] if is_there is None else is_there
        self.tally.unconfirmed += told.count(None) if self._force_latest else 0
        return [*map(bool, found)]

    def is_near(self, name: StoreKey) -> bool:
        """Whether it needs no centre, as far as is known without asking."""
        return name.wire in self._waiting or self._here.get(name.wire, False)

    async def delete(self, name: StoreKey) -> bool:
        """In the region now, at the centre and in other regions later."""
        change = self._change(name, is_deletion=True)
        is_done = await self._region.delete(name)
        await self._region.note(change.packed)
        self._wait(WaitingWrite(change, None))
        return is_done

    async def write_back(self) -> bool:
        """Bring what waits to the centre; False where it did not take something, which waits on."""
        return await self._write([*self._waiting.values()])

    async def pull(self) -> bool:
        """Delete here what the centre was told since the last time; False where it, or the region,
        did not answer."""
        changes = await self.journal.new()
        for change in changes or ():
            wire = change.name.wire
            if change.version < self._version(wire):
                continue
            remember(self._latest, wire, (change.version, change.is_deletion))
            if change.is_deletion:
                remember(self._owed, wire, change)
            write = self._waiting.get(wire)
            if write is not None and not write.is_done and write.change.version < change.version:
                self._forget(wire)
        for wire, change in [*self._owed.items()]:
            is_old = change.version < self._version(wire)
            if is_old or await self._region.delete(change.name):
                self._owed.pop(wire, None)
        return changes is not None and not self._owed

    async def exchange(self) -> bool:
        """Take what changed elsewhere, then write back what changed here and is not older: a
        deletion must not take away what another region wrote after it."""
        await self.pull()
        return await self.write_back()

    async def settled(self) -> None:
        """Return when what was read from the centre is in the region."""
        while self._promotions:
            await asyncio.gather(*self._promotions)

    def _change(self, name: StoreKey, *, is_deletion: bool) -> StoreChange:
        self._last_version = max(self._last_version + 1, int(1e9 * self._clock()))
        remember(self._latest, name.wire, (self._last_version, is_deletion))
        return StoreChange(name, self._last_version, is_deletion)

    def _version(self, wire: bytes) -> int:
        return self._latest.get(wire, (0, False))[0]

    def _wait(self, write: WaitingWrite) -> bool:
        """Whether it waits now. Where there are too many bytes, the oldest frame goes first, and a
        deletion only where nothing else waits."""
        wire = write.change.name.wire
        before = self._waiting.get(wire)
        if before is not None and before.change.version > write.change.version:
            return True  # a later one was faster
        self._forget(wire)
        self._waiting[wire] = write
        self.waiting_bytes += write.size
        while self.waiting_bytes > self._most_waiting_bytes:
            frames = (wire for wire, each in self._waiting.items() if each.frame is not None)
            self._drop(next(frames, next(iter(self._waiting))))
        self._something.set()
        return wire in self._waiting

    def _forget(self, wire: bytes) -> None:
        if (write := self._waiting.pop(wire, None)) is not None:
            self.waiting_bytes -= write.size

    def _drop(self, wire: bytes) -> None:
        self.tally.dropped_writes += self._waiting[wire].is_lost
        self._forget(wire)

    async def _send(self) -> bool:
        """Frames first: the look at what changed elsewhere, before a deletion, may take long."""
        is_done = await self._write(
            [each for each in self._waiting.values() if each.frame is not None]
        )
        if deletions := [each for each in self._waiting.values() if each.frame is None]:
            await self.pull()
            is_done &= await self._write(deletions)
        return is_done

    async def _write(self, writes: Sequence[WaitingWrite]) -> bool:
        async with self._writing:
            return all(await asyncio.gather(*map(self._write_one, writes)))

    async def _write_one(self, write: WaitingWrite) -> bool:
        change, wire = write.change, write.change.name.wire
        async with self._window:
            if self._waiting.get(wire) is not write:
                return True  # a later change has its place
            if not write.is_done:
                name, frame, centre = change.name, write.frame, self._centre
                work = centre.delete(name) if frame is None else centre.put(name, frame)
                write.is_done = await work > 0
            if not write.is_done or not await self._centre.note(change.packed):
                return False
        self.tally.written_back += 1
        if self._waiting.get(wire) is write:
            self._forget(wire)
        return True

    async def _promote(self, name: StoreKey, frame: bytes, before: tuple[int, bool] | None) -> None:
        """Unless it is deleted meanwhile: here, or at the centre, which is told before regions. One
        that was put meanwhile stays."""
        remember(self._here, name.wire, await self._region.put(name, frame) > 0)
        (is_there,) = await self._centre.known([name])
        latest = self._latest.get(name.wire)
        was_deleted = latest[1] if latest is not None and latest != before else is_there is False
        if was_deleted:
            await self._region.delete(name)

    async def _keep_writing(self) -> None:
        while True:
            await self._something.wait()
            self._something.clear()
            if not await self._send():
                await asyncio.sleep(RETRY_S)
                self._something.set()

    async def _keep_exchanging(self) -> None:
        while True:
            await asyncio.sleep(self._exchange_s)
            await self.exchange()


def remember(known: dict[bytes, _Value], wire: bytes, value: _Value) -> None:
    """As the latest of MOST_CHANGES at most."""
    known.pop(wire, None)
    known[wire] = value
    if len(known) > MOST_CHANGES:
        del known[next(iter(known))]
