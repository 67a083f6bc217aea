"""Session: what comes of each request, on a client that replies at once."""

import asyncio
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest
import uvloop

from loadgen.client.exchange import Exchange
from loadgen.client.token_times import ReadLog
from loadgen.context import Request
from loadgen.record import CAME_TOO_LATE, NEVER_SENT, RequestRecord
from loadgen.stats.clock import RunClock
from loadgen.swarm.sending.dispenser import SessionOver
from loadgen.swarm.sending.labels import Labels
from loadgen.swarm.sending.session import TURN_NOT_COME, Hooks, Session
from loadgen.workload.arrivals import ConstantPacer, Rate
from loadgen.workload.corpus import load_corpus
from loadgen.workload.lengths import EstimatedTokens
from loadgen.workload.settings import WorkloadSettings
from loadgen.workload.workload import Workload


class InstantClient:
    """Sends and receives in the same moment; `hold` keeps replies back."""

    def __init__(self) -> None:
        self.log = ReadLog()
        self.free = asyncio.Event()
        self.free.set()
        self.sent: list[str] = []

    async def __aenter__(self) -> "InstantClient":
        return self

    async def __aexit__(self, *_: object) -> None:
        return None

    async def stream(
        self, prompt: str, max_tokens: int, exchange: Exchange, extra: Any, *more: Any
    ) -> None:
        exchange.sent_at = time.perf_counter()
        self.sent.append(prompt)
        await self.free.wait()
        exchange.token_times.append(time.perf_counter())
        exchange.end_at = time.perf_counter()
        exchange.outcome = "ok"


class Talks:
    """The turns of conversations, one conversation behind the other."""

    def __init__(self, *names: str, turns: int) -> None:
        self._turns = [f"{name}{turn}" for name in names for turn in range(turns)]

    def requests(self) -> Iterator[Request]:
        for index, turn in enumerate(self._turns):
            yield Request(index, index, "c", "q", "", turn, "", 1, turn[0])


def make_session(
    rows: list[RequestRecord], workload: Any = None, spent: Any = lambda: None, **more: Any
) -> tuple[Session, InstantClient]:
    client = InstantClient()
    session = Session(
        workload=workload or Workload(load_corpus(), WorkloadSettings(), EstimatedTokens()),
        client=client,  # type: ignore[arg-type]
        clock=RunClock(time.time()),
        worker="0",
        hooks=Hooks(lambda record, gaps_ms: rows.append(record), lambda sample: None, spent=spent),
        **more,
    )
    return session, client


async def ask_until_over(session: Session) -> None:
    try:
        while True:
            await session.send(await session.next_turn(), "user")
    except SessionOver:
        return


def test_a_timer_that_fires_early_makes_no_negative_latency() -> None:
    rows: list[RequestRecord] = []

    async def swarm() -> None:
        session, _ = make_session(rows, pacer=ConstantPacer(Rate.parse("700")))
        async with session.running():
            for _ in range(300):
                await session.send(await session.next_turn(), "user")

    uvloop.run(swarm())
    assert len(rows) == 300
    assert min(row.ttft_ms for row in rows if row.ttft_ms is not None) >= 0
    assert all(row.sent_s is not None and row.scheduled_s <= row.sent_s for row in rows)


def test_stopping_records_what_was_due_and_frees_who_waits() -> None:
    rows: list[RequestRecord] = []

    async def swarm() -> bool:
        session, client = make_session(rows, pacer=ConstantPacer(Rate.parse("100")))
        async with session.running():
            client.free.clear()
            busy = asyncio.create_task(session.send(await session.next_turn(), "busy"))
            await asyncio.sleep(0.1)
            session.stop()
            client.free.set()
            await busy
            try:
                await session.next_turn()
            except SessionOver:
                return True
        return False

    assert uvloop.run(swarm())
    unsent = [row for row in rows if row.error == NEVER_SENT]
    assert len(unsent) >= 3
    assert {(row.outcome, row.sent_s) for row in unsent} == {("cancelled", None)}
    assert sum(row.outcome == "ok" for row in rows) == 1


def test_what_was_due_while_this_process_slept_is_recorded_once_at_the_end() -> None:
    rows: list[RequestRecord] = []

    async def swarm() -> None:
        session, _ = make_session(rows, pacer=ConstantPacer(Rate.parse("100")))
        async with session.running():
            await session.send(await session.next_turn(), "user")
            time.sleep(0.5)  # noqa: ASYNC251
            session.stop()
            time.sleep(0.1)  # noqa: ASYNC251
            session.stop()

    uvloop.run(swarm())
    late = [row for row in rows if row.error == CAME_TOO_LATE]
    assert len(late) >= 40
    assert {(row.outcome, row.sent_s) for row in late} == {("cancelled", None)}
    assert sorted(int(row.request_id) for row in rows) == list(range(len(rows)))
    assert max(row.scheduled_s for row in rows) <= min(row.end_s for row in late)


def test_the_end_of_a_load_that_was_far_too_much_makes_only_so_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("loadgen.swarm.sending.dispenser.MOST_HELD", 10)
    rows: list[RequestRecord] = []

    async def swarm() -> None:
        session, _ = make_session(rows, pacer=ConstantPacer(Rate.parse("1000")))
        async with session.running():
            time.sleep(0.2)  # noqa: ASYNC251
            session.stop()

    uvloop.run(swarm())
    assert sum(row.error == CAME_TOO_LATE for row in rows) == 10


def test_the_drain_waits_for_what_came_while_this_process_slept() -> None:
    rows: list[RequestRecord] = []

    async def swarm() -> None:
        session, client = make_session(rows)
        async with session.running():
            client.free.clear()
            user = asyncio.create_task(session.send(await session.next_turn(), "user"))
            await asyncio.sleep(0)
            session.stop()
            draining = asyncio.create_task(session.drain(0.5))
            await asyncio.sleep(0)
            time.sleep(1.0)  # noqa: ASYNC251
            asyncio.get_running_loop().call_later(0.01, client.free.set)
            await draining
            assert user.done()

    uvloop.run(swarm())
    assert [row.outcome for row in rows] == ["ok"]


def test_a_cancelled_request_is_recorded() -> None:
    rows: list[RequestRecord] = []

    async def swarm() -> None:
        session, client = make_session(rows)
        async with session.running():
            client.free.clear()
            sending = asyncio.create_task(session.send(await session.next_turn(), "user"))
            await asyncio.sleep(0.01)
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)

    uvloop.run(swarm())
    assert [row.outcome for row in rows] == ["cancelled"]


def test_the_drain_lasts_until_nothing_is_in_flight() -> None:
    rows: list[RequestRecord] = []

    async def swarm() -> None:
        session, client = make_session(rows)
        async with session.running():
            client.free.clear()
            turns = [await session.next_turn() for _ in range(2)]
            users = [asyncio.create_task(session.send(turn, "user")) for turn in turns]
            await asyncio.sleep(0)
            session.stop()
            draining = asyncio.create_task(session.drain(60.0))
            await asyncio.sleep(0.05)
            assert not draining.done()
            client.free.set()
            await draining
            assert len(rows) == len(users)

    uvloop.run(swarm())
    assert [row.outcome for row in rows] == ["ok", "ok"]


def test_the_drain_leaves_a_user_that_is_too_slow_to_locust() -> None:
    rows: list[RequestRecord] = []

    async def swarm() -> None:
        session, client = make_session(rows)
        async with session.running():
            client.free.clear()
            user = asyncio.create_task(session.send(await session.next_turn(), "user"))
            await asyncio.sleep(0)
            session.stop()
            await session.drain(0.01)
            assert not user.done()
            client.free.set()
            await user

    uvloop.run(swarm())
    assert [row.outcome for row in rows] == ["ok"]


def test_users_do_not_wait_behind_a_turn_that_cannot_go() -> None:
    async def swarm() -> list[str]:
        session, client = make_session([], Talks("a", "b", "c", "d", turns=10))
        async with session.running():
            client.free.clear()
            users = [asyncio.create_task(ask_until_over(session)) for _ in range(3)]
            await asyncio.sleep(0.01)
            assert client.sent == ["a0", "b0", "c0"]
            client.free.set()
            await asyncio.wait(users, return_when=asyncio.FIRST_COMPLETED)
            session.stop()
            await asyncio.gather(*users)
        return client.sent

    sent = uvloop.run(swarm())
    assert len(sent) == 40
    for name in "abcd":
        assert [turn for turn in sent if turn[0] == name] == [f"{name}{at}" for at in range(10)]


@pytest.mark.parametrize("stops", [False, True])
def test_turns_that_cannot_go_take_no_user_of_a_capped_open_loop(stops: bool) -> None:
    rows: list[RequestRecord] = []

    async def swarm() -> None:
        pacer = ConstantPacer(Rate.parse("1000"))
        session, client = make_session(rows, Talks("a", "b", turns=3), pacer=pacer)
        async with session.running():
            client.free.clear()
            users = [asyncio.create_task(ask_until_over(session)) for _ in range(2)]
            await asyncio.sleep(0.05)
            assert client.sent == ["a0", "b0"]
            if stops:
                session.stop()
            client.free.set()
            await asyncio.sleep(0.05)
            session.stop()
            await asyncio.gather(*users)

    uvloop.run(swarm())
    assert len(rows) == 6
    assert sum(row.error == TURN_NOT_COME for row in rows) == (4 if stops else 0)
    ended_s = {row.request_id: row.end_s for row in rows}
    later = [row for row in rows if row.outcome == "ok" and row.request_id not in ("0", "3")]
    assert all(row.scheduled_s >= ended_s[str(int(row.request_id) - 1)] for row in later)


def test_a_turn_that_is_not_sent_holds_up_neither_its_conversation_nor_the_end() -> None:
    ends: list[None] = []

    async def skip(session: Session, indexes: range) -> None:
        for _ in indexes:
            await session.next_turn()

    async def swarm() -> list[str]:
        talks = Talks("a", turns=6)
        session, client = make_session([], talks, lambda: ends.append(None), share=6)
        async with session.running():
            await skip(session, range(2))
            await session.send(await session.next_turn(), "user")
            await skip(session, range(2))
            turn = await session.next_turn()
            await asyncio.gather(*(session.send(turn, "user") for _ in range(2)))
            assert len(ends) == 1
        return client.sent

    assert uvloop.run(swarm()) == ["a2", "a5", "a5"]


def test_what_is_being_sent_is_not_given_up() -> None:
    async def swarm() -> list[str]:
        session, client = make_session([], Talks("a", turns=2))
        async with session.running():
            client.free.clear()
            sending = asyncio.create_task(session.send(await session.next_turn(), "user"))
            await asyncio.sleep(0)
            session.give_up()
            second = asyncio.create_task(session.next_turn())
            await asyncio.sleep(0.01)
            assert not second.done()
            client.free.set()
            await asyncio.gather(sending, second)
        return client.sent

    assert uvloop.run(swarm()) == ["a0"]


def test_what_another_task_has_taken_is_not_given_up() -> None:
    async def swarm() -> list[str]:
        session, client = make_session([], Talks("a", turns=2))
        go = asyncio.Event()

        async def slow_user() -> None:
            turn = await session.next_turn()
            await go.wait()
            await session.send(turn, "slow")

        async with session.running():
            slow = asyncio.create_task(slow_user())
            await asyncio.sleep(0)
            session.give_up()
            second = asyncio.create_task(session.next_turn())
            await asyncio.sleep(0.01)
            assert not second.done(), "the first turn of the conversation is still to come"
            go.set()
            await asyncio.gather(slow, second)
        return client.sent

    assert uvloop.run(swarm()) == ["a0"]


BODIES: dict[str, tuple[dict[str, Any] | None, str]] = {
    "nothing of its own": (None, ""),
    "what shares no KV with others stays out": ({"seed": 1}, ""),
    "as all others": ({"model": "base", "cache_salt": "usual"}, ""),
    "an adapter": ({"model": "adapter"}, "model=adapter"),
    "a salt, which may be a secret": ({"cache_salt": "s"}, "cache_salt=043a718774c5"),
    "no salt, where others have one": ({"cache_salt": None}, "cache_salt=dc937b598926"),
}


@pytest.mark.parametrize("name", BODIES)
def test_a_row_says_by_what_its_body_keeps_kv_apart(name: str) -> None:
    body, scope = BODIES[name]
    rows: list[RequestRecord] = []

    async def swarm() -> None:
        labels = Labels(False, {"model": "base", "cache_salt": "usual"})
        session, _ = make_session(rows, labels=labels)
        async with session.running():
            await session.send(await session.next_turn(), "user", body)

    uvloop.run(swarm())
    assert [row.kv_scope for row in rows] == [scope]


CUT_OFF = """
from types import SimpleNamespace
from loadgen.record import CAME_TOO_LATE, NEVER_SENT, RequestRecord
from loadgen.stats.slo import CutOffRule
from loadgen.swarm.sending import stage as module
from loadgen.swarm.sending.session import TURN_NOT_COME
module.Engine = SimpleNamespace(of_process=lambda: SimpleNamespace(post=lambda function: None))
stage = module.Stage(SimpleNamespace())
stage._cut_offs = CutOffRule(patience_s=5.0)
wanted = {NEVER_SENT: "timeout", CAME_TOO_LATE: "cancelled", TURN_NOT_COME: "cancelled"}
for error, outcome in wanted.items():
    fields = dict.fromkeys(RequestRecord.__dataclass_fields__)
    fields |= {"outcome": "cancelled", "scheduled_s": 0.0, "end_s": 9.0, "error": error}
    record = RequestRecord(**fields)
    stage._on_row(record, [])
    assert record.outcome == outcome, (error, record.outcome)
"""


def test_what_this_process_came_too_late_to_send_has_not_waited_for_the_host() -> None:
    # Locust patches the process that imports it.
    subprocess.run([sys.executable, "-c", CUT_OFF], check=True, timeout=60)
