"""Session: what comes of each request, on a client that replies at once."""

import asyncio
import time
from typing import Any

import uvloop

from loadgen.client.exchange import Exchange
from loadgen.client.token_times import ReadLog
from loadgen.record import RequestRecord
from loadgen.stats.clock import RunClock
from loadgen.swarm.sending.dispenser import SessionOver
from loadgen.swarm.sending.session import NEVER_SENT, Hooks, Session
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

    async def __aenter__(self) -> "InstantClient":
        return self

    async def __aexit__(self, *_: object) -> None:
        return None

    async def stream(
        self, prompt: str, max_tokens: int, exchange: Exchange, extra: Any, *more: Any
    ) -> None:
        exchange.sent_at = time.perf_counter()
        await self.free.wait()
        exchange.token_times.append(time.perf_counter())
        exchange.end_at = time.perf_counter()
        exchange.outcome = "ok"


def make_session(rows: list[RequestRecord], **more: Any) -> tuple[Session, InstantClient]:
    client = InstantClient()
    workload = Workload(load_corpus(), WorkloadSettings(), EstimatedTokens())
    session = Session(
        workload=workload,
        client=client,  # type: ignore[arg-type]
        clock=RunClock(time.time()),
        worker="0",
        hooks=Hooks(row=lambda record, gaps_ms: rows.append(record), sample=lambda sample: None),
        **more,
    )
    return session, client


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
