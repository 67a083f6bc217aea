"""Changes that come late to the centre: its journal does not answer, or others were there first."""

import asyncio

import pytest
from test_kv_regional import FRAME, A, B, MemoryStore, World, finds

from kv_tiers.store.nodes import JournalPart
from kv_tiers.store.regional import JournalReader, StoreChange


class Journal:
    """Of a centre that takes frames: while it is `lost` it neither takes nor tells entries."""

    def __init__(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        self.lost = True
        self._note, self._notes = world.centre.note, world.centre.notes
        monkeypatch.setattr(world.centre, "note", self.note)
        monkeypatch.setattr(world.centre, "notes", self.notes)

    async def note(self, entry: bytes) -> bool:
        return not self.lost and await self._note(entry)

    async def notes(self, position: bytes) -> JournalPart | None:
        return None if self.lost else await self._notes(position)


async def test_a_frame_goes_to_the_centre_once_however_late_its_journal_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()
    journal, client = Journal(world, monkeypatch), world.clients[0]
    await client.put(A, FRAME)
    for _ in range(2):
        assert not await client.write_back()
    assert world.centre.calls.count("put") == 1
    assert (client.waiting, client.tally.written_back) == (1, 0)
    journal.lost = False
    assert await client.write_back()
    assert world.centre.calls.count("put") == 1
    assert len(world.centre.journal) == 1
    assert (client.waiting, client.waiting_bytes, client.tally.written_back) == (0, 0, 1)


async def test_a_deletion_whose_entry_is_late_takes_no_later_write(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()
    world.seed(A)
    journal, (client, other) = Journal(world, monkeypatch), world.clients
    await client.delete(A)
    assert not await client.write_back()
    await other.put(A, FRAME)
    assert not await other.write_back()
    journal.lost = False
    assert await client.write_back()
    assert world.centre.frames == {A: FRAME}


@pytest.mark.parametrize("change", ["put", "delete", "too many puts"])
async def test_what_the_centre_has_is_not_dropped_and_what_others_do_not_know_is(
    change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kv_tiers.store.regional.RETRY_S", 0.001)
    world = World(most_waiting_bytes=2 * len(FRAME))
    world.seed(B)
    Journal(world, monkeypatch)
    client = world.clients[0]
    await (client.delete(B) if change == "delete" else client.put(A, FRAME))
    assert not await client.write_back()
    if change == "too many puts":
        await client.put(B, FRAME)
    async with client:
        pass
    assert client.waiting == 0
    assert client.tally.dropped_writes == (1 if change == "delete" else 0)
    assert (B in world.centre.frames) is (change != "delete")


async def deleted_then_written() -> World:
    """The first region cannot tell the centre of its deletion, the second has told of its write."""
    world = World()
    world.seed(A)
    client, other = world.clients
    world.now_s = 10.0
    await client.delete(A)
    world.now_s = 20.0
    await other.put(A, FRAME)
    assert await other.write_back()
    return world


@pytest.mark.parametrize("way", ["an exchange", "by itself", "at the end", "a round"])
async def test_a_later_write_stays_though_a_deletion_before_it_comes_late(way: str) -> None:
    """The first region deletes while it cannot reach the centre, and another one writes."""
    world = await deleted_then_written()
    client, other = world.clients
    if way == "a round":
        await world.sync.round()
        assert await client.write_back(), "without a look at what others did"
        assert world.centre.frames == {}
        assert await world.sync.round() == 0
        assert world.sync.behind == []
    elif way == "an exchange":
        await client.exchange()
    else:
        async with client, asyncio.timeout(5):
            while client.waiting and way == "by itself":  # noqa: ASYNC110
                await asyncio.sleep(0)
    assert (client.waiting, world.centre.frames) == (0, {A: FRAME})
    assert await finds(client, A)
    assert await finds(other, A)


async def test_at_the_end_a_long_journal_keeps_no_frame_from_the_centre(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("kv_tiers.store.regional.CLOSE_S", 0.05)
    world = World()
    client = world.clients[0]

    async def hang(_: bytes) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(world.centre, "notes", hang)
    await client.delete(B)
    await client.put(A, FRAME)
    async with client:
        pass
    assert world.centre.frames == {A: FRAME}
    assert client.tally.dropped_writes == 1, "the deletion alone"


async def test_a_journal_is_read_on_where_it_ceased_to_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It gives an entry at a time, and every third call fails."""
    changes = [StoreChange(A, version, is_deletion=version % 2 == 0) for version in range(4)]
    store, calls = MemoryStore(journal=[each.packed for each in changes]), list[bytes]()
    whole = store.notes

    async def notes(position: bytes) -> JournalPart | None:
        calls.append(position)
        part = await whole(position)
        return JournalPart(part.entries[:1]) if part and len(calls) % 3 else None

    monkeypatch.setattr(store, "notes", notes)
    reader = JournalReader(store)
    assert [await reader.new() for _ in range(4)] == [None, None, changes, []]


@pytest.mark.parametrize("is_exchanged", [False, True])
async def test_a_later_write_comes_back_where_an_earlier_deletion_was_done_and_not_noted(
    is_exchanged: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rounds have seen the write, and only the entry tells them of the deletion after it."""
    world = await deleted_then_written()
    client, _ = world.clients
    for _ in range(2):
        await world.sync.round()
    journal = Journal(world, monkeypatch)
    assert not await client.exchange()
    assert world.centre.frames == {}
    journal.lost = False
    assert await (client.exchange() if is_exchanged else client.write_back())
    for _ in range(2):
        await world.sync.round()
    assert (client.waiting, world.centre.frames) == (0, {A: FRAME})


async def test_a_frame_that_the_centre_lacks_is_asked_of_regions_alone() -> None:
    world = World()
    await world.clients[0].put(A, FRAME)
    for near in world.near:
        near.frames.clear()
        near.calls.clear()
    await world.sync.round()
    assert [near.calls for near in world.near] == [["get"], ["get"]]
    assert world.centre.calls == ["known"]
