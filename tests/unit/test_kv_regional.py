"""A regional store before a central one, in memory and on a counted clock: promotion, writing back,
the loss of either, and how long regions are stale by their own exchanges or by central rounds."""

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from kv_tiers.store import CentralSync, RegionalStore, StoreKey
from kv_tiers.store.central import CENTRE
from kv_tiers.store.nodes import JournalPart
from kv_tiers.store.regional import StoreChange

A, B, C = (StoreKey(f"chunk {n}".encode(), b"context") for n in range(3))
FRAME = b"frame" * 20
PERIOD_S = 10.0


@dataclass
class MemoryStore:
    """What a ShardedStore does, in memory; while it is `lost` nothing is done or told."""

    frames: dict[StoreKey, bytes] = field(default_factory=dict)
    journal: list[bytes] = field(default_factory=list)
    first_entry: int = 0
    """Those before it have gone."""
    lost: bool = False
    calls: list[str] = field(default_factory=list)

    async def put(self, name: StoreKey, frame: bytes) -> int:
        self.calls.append("put")
        if self.lost:
            return 0
        self.frames[name] = frame
        return 1

    async def get(self, name: StoreKey) -> bytes | None:
        self.calls.append("get")
        return None if self.lost else self.frames.get(name)

    async def known(self, names: Sequence[StoreKey]) -> list[bool | None]:
        self.calls += ["known"] * bool(names)
        return [None if self.lost else name in self.frames for name in names]

    async def delete(self, name: StoreKey) -> bool:
        self.calls.append("delete")
        if not self.lost:
            self.frames.pop(name, None)
        return not self.lost

    async def note(self, entry: bytes) -> bool:
        if not self.lost:
            self.journal.append(entry)
        return not self.lost

    async def notes(self, position: bytes) -> JournalPart | None:
        if self.lost:
            return None
        begin = int(position.partition(b"-")[0])
        first = max(begin, self.first_entry)
        entries = enumerate(self.journal[first:], first + 1)
        return JournalPart(tuple((b"%d" % at, each) for at, each in entries), begin in (0, first))


class World:
    """A centre and regions of one client each, with one clock; nothing goes on by itself."""

    def __init__(self, regions: int = 2, **settings: Any) -> None:
        self.now_s = 1.0
        self.centre = MemoryStore()
        self.near = [MemoryStore() for _ in range(regions)]
        self.clients = [
            RegionalStore(near, self.centre, clock=lambda: self.now_s, **settings)
            for near in self.near
        ]
        self.sync = CentralSync(
            self.centre, {f"region {at}": near for at, near in enumerate(self.near)}
        )

    def seed(self, *names: StoreKey) -> None:
        """Have them everywhere."""
        for store in (self.centre, *self.near):
            store.frames |= dict.fromkeys(names, FRAME)


async def finds(client: RegionalStore, name: StoreKey) -> bool:
    """What a lookup says, and reading after it."""
    (said,) = await client.has([name])
    frame = await client.get(name)
    await client.settled()
    assert said is (frame is not None)
    assert frame in (None, FRAME)
    return said


async def test_what_the_centre_has_is_read_once_over_the_link() -> None:
    world = World()
    world.centre.frames[A] = FRAME
    client = world.clients[0]
    assert await finds(client, A)
    assert world.near[0].frames == {A: FRAME}
    assert (client.tally.central_hits, client.tally.regional_hits) == (1, 0)
    world.centre.calls.clear()
    assert await finds(client, A)
    assert world.centre.calls == [], "nobody asks the centre for what is near"
    assert client.tally.regional_hits == 1
    assert not await finds(client, B)
    assert client.waiting == 0, "what comes from the centre is not written back"


async def test_a_write_is_near_at_once_and_at_the_centre_later() -> None:
    world = World()
    client, other = world.clients
    assert await client.put(A, FRAME) == 2
    assert world.near[0].frames == {A: FRAME}
    assert world.centre.frames == {}
    assert not await finds(other, A), "the other region does not see it yet"
    assert (client.waiting, client.waiting_bytes > len(FRAME)) == (1, True)
    assert await client.write_back()
    assert (client.waiting, client.waiting_bytes, client.tally.written_back) == (0, 0, 1)
    assert await finds(other, A)


async def test_while_it_is_open_writes_go_to_the_centre_by_themselves() -> None:
    world = World()
    async with world.clients[0] as client:
        await client.put(A, FRAME)
        await client.put(B, FRAME)
        await client.delete(A)
        async with asyncio.timeout(5):
            while client.waiting:  # noqa: ASYNC110
                await asyncio.sleep(0)
    assert world.centre.frames == {B: FRAME}


async def test_what_waits_at_the_end_is_written_or_counted() -> None:
    for lost, dropped in ((False, 0), (True, 2)):
        world = World()
        client = world.clients[0]
        await client.put(A, FRAME)
        await client.put(B, FRAME)
        world.centre.lost = lost
        async with client:
            pass
        assert (client.waiting, client.tally.dropped_writes) == (0, dropped)
        assert len(world.centre.frames) == 2 - dropped


async def test_the_end_waits_no_longer_than_its_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kv_tiers.store.regional.CLOSE_S", 0.01)
    world = World()
    client = world.clients[0]

    async def hang(*_: object) -> int:
        await asyncio.Event().wait()
        return 0

    monkeypatch.setattr(world.centre, "put", hang)
    await client.put(A, FRAME)
    async with asyncio.timeout(5):
        await client.__aexit__()
    assert client.tally.dropped_writes == 1


async def test_of_too_many_writes_the_oldest_frames_are_dropped_and_deletions_stay() -> None:
    world = World(most_waiting_bytes=3 * len(FRAME))
    world.seed(A)
    world.centre.lost = True
    client = world.clients[0]
    await client.delete(A)
    names = [StoreKey.alone(b"%d" % at) for at in range(5)]
    for name in names:
        await client.put(name, FRAME)
        assert client.waiting_bytes <= 3 * len(FRAME)
    dropped = client.tally.dropped_writes
    assert dropped == len(names) + 1 - client.waiting > 0
    assert set(world.near[0].frames) == set(names), "they are near all the same"
    world.centre.lost = False
    assert await client.write_back()
    assert set(world.centre.frames) == set(names[dropped:])


async def test_a_later_change_takes_the_place_of_one_that_waits() -> None:
    world = World()
    client = world.clients[0]
    for _ in range(3):
        await client.put(A, FRAME)
        await client.delete(A)
    assert client.waiting == 1
    assert not await finds(client, A)
    assert await client.write_back()
    assert world.centre.frames == {}
    await client.delete(A)
    await client.put(A, FRAME)
    assert await finds(client, A)
    assert await client.write_back()
    assert world.centre.frames == {A: FRAME}


async def test_a_change_that_comes_while_others_are_written_back_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()
    client, put, written = world.clients[0], world.centre.put, list[StoreKey]()

    async def slow_put(name: StoreKey, frame: bytes) -> int:
        written.append(name)
        if name == A:
            await client.delete(B)
        return await put(name, frame)

    monkeypatch.setattr(world.centre, "put", slow_put)
    await client.put(A, FRAME)
    await client.put(B, FRAME)
    assert await client.write_back()
    assert written == [A], "what waited of the other was for nothing"
    assert client.waiting == 1
    assert await client.write_back()
    assert world.centre.frames == {A: FRAME}


async def test_what_changes_while_it_is_written_back_waits_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()
    client, put = world.clients[0], world.centre.put

    async def slow_put(name: StoreKey, frame: bytes) -> int:
        await client.delete(name)
        return await put(name, frame)

    monkeypatch.setattr(world.centre, "put", slow_put)
    await client.put(A, FRAME)
    assert await client.write_back()
    assert client.waiting == 1
    assert await client.write_back()
    assert world.centre.frames == {}


async def test_what_the_centre_did_not_take_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kv_tiers.store.regional.RETRY_S", 0.001)
    world = World()
    world.centre.lost = True
    async with world.clients[0] as client, asyncio.timeout(20):
        await client.put(A, FRAME)
        while world.centre.calls.count("put") < 2:  # noqa: ASYNC110
            await asyncio.sleep(0)
        world.centre.lost = False
        while client.waiting:  # noqa: ASYNC110
            await asyncio.sleep(0)
    assert world.centre.frames == {A: FRAME}


async def test_without_its_region_a_client_goes_on_with_the_centre() -> None:
    world = World()
    world.seed(A)
    client = world.clients[0]
    world.near[0].lost = True
    assert await finds(client, A)
    assert await client.put(B, FRAME) == 1
    assert await finds(client, B), "it is on its way to the centre"
    assert await client.write_back()
    assert await finds(client, B)
    world.near[0].lost = False
    world.near[0].frames.clear()
    assert await finds(client, A)
    assert set(world.near[0].frames) == {A}, "and fills the region again when it is back"


@pytest.mark.parametrize("force_latest", [False, True])
async def test_without_the_centre_a_region_goes_on(force_latest: bool) -> None:
    world = World(force_latest=force_latest)
    world.seed(A)
    client = world.clients[0]
    world.centre.lost = True
    assert await finds(client, A)
    assert client.tally.unconfirmed == (2 if force_latest else 0)
    await client.put(B, FRAME)
    await client.delete(A)
    assert not await client.write_back()
    assert (client.waiting, await finds(client, B), await finds(client, A)) == (2, True, False)
    world.centre.lost = False
    assert await client.write_back()
    assert set(world.centre.frames) == {B}


async def test_asking_the_centre_first_costs_no_bytes_and_finds_no_deleted_chunk() -> None:
    world = World()
    world.seed(A, B)
    usual = world.clients[1]
    latest = RegionalStore(world.near[1], world.centre, force_latest=True)
    await world.clients[0].delete(A)
    assert await world.clients[0].write_back()
    assert await finds(usual, A), "nobody has told this region"
    assert not await finds(latest, A)
    world.centre.calls.clear()
    assert await finds(latest, B)
    assert set(world.centre.calls) == {"known"}
    assert await latest.put(C, FRAME)
    assert await finds(latest, C), "what it wrote itself, and the centre has not yet"


async def test_what_was_deleted_while_it_was_read_does_not_come_back() -> None:
    for late in ("at the centre", "here"):
        world = World()
        world.centre.frames[A] = FRAME
        client = world.clients[0]
        assert await client.get(A) == FRAME
        if late == "here":
            await client.delete(A)
        else:
            del world.centre.frames[A]
        await client.settled()
        assert world.near[0].frames == {}


async def test_what_was_put_while_it_was_read_stays() -> None:
    for late in ("here", "here and deleted at the centre before", "elsewhere"):
        world = World()
        world.centre.frames[A] = FRAME
        client, other = world.clients
        assert await client.get(A) == FRAME
        await (other if late == "elsewhere" else client).put(A, FRAME)
        if late == "elsewhere":
            await other.write_back()
            await client.pull()
        elif "deleted" in late:
            del world.centre.frames[A]
        await client.settled()
        assert world.near[0].frames == {A: FRAME}


async def test_a_region_takes_from_the_centre_what_others_deleted() -> None:
    world = World()
    world.seed(A, B)
    client, other = world.clients
    await client.delete(A)
    await client.exchange()
    assert await finds(other, A)
    world.near[1].lost = True
    assert not await other.pull(), "the region could not do it"
    world.near[1].lost = False
    assert A in world.near[1].frames
    assert await other.pull()
    assert (await finds(other, A), await finds(other, B)) == (False, True)


async def test_exchanges_and_rounds_go_on_by_themselves() -> None:
    for way in ("exchanges", "rounds"):
        world = World(exchange_s=0.001 if way == "exchanges" else 0.0)
        world.seed(A)
        rounds = asyncio.create_task(world.sync.keep(0.001)) if way == "rounds" else None
        async with world.clients[0] as client, world.clients[1] as other, asyncio.timeout(20):
            await client.delete(A)
            while await finds(other, A):  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        if rounds is not None:
            rounds.cancel()


async def test_a_deletion_counts_no_more_once_the_chunk_is_put_again() -> None:
    world = World()
    world.seed(A)
    client, other = world.clients
    await client.delete(A)
    await client.write_back()
    world.now_s += 1
    await other.put(A, FRAME)
    assert await other.pull()
    assert A in world.near[1].frames
    assert await other.write_back()
    assert await finds(client, A)
    await world.sync.round()
    assert A in world.centre.frames
    assert A in world.near[1].frames


async def test_a_deletion_that_a_region_could_not_do_is_too_late_after_a_put() -> None:
    world = World()
    world.seed(A)
    client, other = world.clients
    await client.delete(A)
    await client.write_back()
    world.near[1].lost = True
    assert not await other.pull()
    world.near[1].lost = False
    world.now_s += 1
    await other.put(A, FRAME)
    assert await other.pull()
    assert A in world.near[1].frames


async def test_a_write_that_waits_is_void_after_a_later_deletion() -> None:
    world = World()
    client, other = world.clients
    await other.put(A, FRAME)
    world.now_s += 1
    await client.delete(A)
    await client.write_back()
    assert await other.pull()
    assert (other.waiting, await finds(other, A)) == (0, False)


async def test_a_late_write_does_not_bring_back_what_was_deleted_after_it() -> None:
    world = World()
    client, other = world.clients
    await client.put(A, FRAME)
    world.now_s += 1
    await other.delete(A)
    await world.sync.round()
    assert await client.write_back(), "only now"
    await world.sync.round()
    await client.settled()
    for store in (world.centre, *world.near):
        assert A not in store.frames


async def test_a_round_brings_what_no_client_could_write_back() -> None:
    world = World(most_waiting_bytes=1)
    world.seed(B)
    client, other = world.clients
    await client.put(A, FRAME)
    await client.delete(B)
    assert (client.waiting, client.tally.dropped_writes) == (0, 2)
    await client.exchange()
    await other.exchange()
    assert (await finds(other, A), await finds(other, B)) == (False, True)
    assert await world.sync.round() == 2
    assert (await finds(other, A), await finds(other, B)) == (True, False)
    assert await world.sync.round() == 0


async def test_a_region_that_was_away_is_behind_until_it_has_heard() -> None:
    world = World(regions=3)
    world.seed(A)
    world.near[2].lost = True
    await world.sync.round()
    assert world.sync.behind == ["region 2"], "nobody knows what changed there"
    await world.clients[0].delete(A)
    await world.sync.round()
    assert world.sync.behind == ["region 2"]
    assert not await finds(world.clients[1], A)
    world.near[2].lost = False
    assert await finds(world.clients[2], A)
    await world.sync.round()
    assert world.sync.behind == []
    assert not await finds(world.clients[2], A)


async def test_without_the_centre_a_round_still_tells_the_regions() -> None:
    world = World(most_waiting_bytes=1)
    world.seed(A)
    world.centre.lost = True
    await world.clients[0].delete(A)
    await world.clients[0].put(B, FRAME)
    await world.sync.round()
    assert world.sync.behind == [CENTRE]
    assert A not in world.near[1].frames
    world.centre.lost = False
    await world.sync.round()
    assert (world.sync.behind, world.centre.frames) == ([], {B: FRAME})


async def test_entries_that_have_gone_and_foreign_ones_are_seen() -> None:
    world = World()
    client, other = world.clients
    await client.delete(A)
    await client.write_back()
    world.centre.journal.append(b"not ours")
    assert await other.pull()
    assert other.journal.gaps == 0
    await client.delete(B)
    await client.delete(C)
    await client.write_back()
    world.centre.first_entry = 3
    world.near[1].frames = dict.fromkeys((B, C), FRAME)
    assert await other.pull()
    assert other.journal.gaps == 1
    assert set(world.near[1].frames) == {B}, "its deletion had gone"
    world.centre.first_entry = 5  # and so have all that were read
    world.centre.journal += [b"gone"]
    for _ in range(2):
        assert await other.pull()
    assert other.journal.gaps == 2


async def test_the_centre_is_told_before_regions_which_ask_it_about_what_they_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()
    world.seed(A)
    await world.clients[0].delete(A)
    seen: list[bool] = []
    delete = world.near[1].delete

    async def noting(name: StoreKey) -> bool:
        seen.append(A in world.centre.frames)
        return await delete(name)

    monkeypatch.setattr(world.near[1], "delete", noting)
    await world.sync.round()
    assert seen == [False]


def test_a_change_comes_back_from_its_entry() -> None:
    for change in (StoreChange(A, 1), StoreChange(StoreKey.alone(b"\0" * 300), 2**60, True)):
        assert StoreChange.of(change.packed) == change
    assert StoreChange.of(b"short") is None


def steps(phases: Sequence[float], until_s: float) -> list[tuple[float, int]]:
    """When each of several does something, every PERIOD_S from its phase on."""
    count = int(until_s / PERIOD_S) + 1
    return sorted(
        (phase + PERIOD_S * at, who) for who, phase in enumerate(phases) for at in range(count)
    )


async def stale_s(way: str, phases: Sequence[float], at_s: float) -> tuple[float, float]:
    """How long after a deletion in the first region the second still has the chunk, and after a put
    the centre has none."""
    world = World()
    world.seed(A)
    client, other = world.clients
    deleted_s = put_s = math.inf
    world.now_s = at_s
    await client.delete(A)
    await client.put(B, FRAME)
    if way == "at once":
        await client.write_back()
        assert await finds(other, B)
    for now_s, who in steps(phases, 6 * PERIOD_S):
        if now_s <= at_s:
            continue
        if way == "rounds":
            await world.sync.round()
        else:
            mine = world.clients[who]
            await (mine.exchange() if way == "exchanges" else mine.pull())
        if A not in world.near[1].frames:
            deleted_s = min(deleted_s, now_s - at_s)
        if B in world.centre.frames:
            put_s = min(put_s, now_s - at_s)
    return deleted_s, put_s


GRID = [0.5 + at for at in range(10)]


@pytest.mark.parametrize(
    ("way", "bound_s", "above_s"),
    [
        ("rounds", PERIOD_S, 0.0),
        ("at once", PERIOD_S, 0.0),
        ("exchanges", 2 * PERIOD_S, PERIOD_S),
    ],
)
async def test_a_deletion_is_known_elsewhere_after_a_period_or_two(
    way: str, bound_s: float, above_s: float
) -> None:
    """By rounds within one period, and in all regions at once; by what regions do themselves it
    depends on when the other one got its writes through."""
    found = []
    for first in GRID:
        for second in GRID if way != "rounds" else (first,):
            phases = (first,) if way == "rounds" else (first, second)
            deleted_s, _ = await stale_s(way, phases, PERIOD_S + 5.2)
            found.append(deleted_s)
    assert above_s < max(found) <= bound_s


async def test_a_put_is_found_once_the_centre_has_it() -> None:
    longest = {}
    for way in ("rounds", "exchanges"):
        found = [await stale_s(way, (phase,), PERIOD_S + 5.2) for phase in GRID]
        longest[way] = max(put_s for _, put_s in found)
    assert all(0 < put_s <= PERIOD_S for put_s in longest.values())


async def test_all_regions_know_of_a_deletion_after_the_same_round() -> None:
    for way in ("rounds", "exchanges"):
        world = World(regions=3)
        world.seed(A)
        await world.clients[0].delete(A)
        if way == "rounds":
            await world.sync.round()
        else:
            await world.clients[0].exchange()
            await world.clients[1].exchange()
        knows = [not await finds(client, A) for client in world.clients[1:]]
        assert knows == ([True, True] if way == "rounds" else [True, False])
