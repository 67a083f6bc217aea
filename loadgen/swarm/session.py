"""One process's part in one swarm, on the loop's side: workload, client, pacing, records."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from loadgen.client.client import StreamingClient
from loadgen.client.exchange import Exchange
from loadgen.context import Request
from loadgen.record import RequestRecord
from loadgen.stats.clock import RunClock
from loadgen.stats.self_watch import ClientSample, LoopWatch
from loadgen.swarm.index_set import IndexSet
from loadgen.swarm.recording import to_record
from loadgen.workload.arrivals import Pacer
from loadgen.workload.workload import Workload

NEVER_SENT = "due before the end of the run, but every user was busy"


@dataclass(frozen=True, slots=True)
class Turn:
    """A request and, in an open loop, when it was meant to go (`time.perf_counter()` seconds)."""

    request: Request
    due_at: float | None


class SessionOver(Exception):
    """The swarm is stopping: nothing new may be sent."""


class Session:
    """Hands requests to users and turns what came of them into records.

    Lives on the loop. `on_rows` and `on_sample` are called there and must not block.
    """

    def __init__(
        self,
        *,
        workload: Workload,
        client: StreamingClient,
        clock: RunClock,
        worker: str,
        on_row: Callable[[RequestRecord, list[float]], None],
        on_sample: Callable[[ClientSample], None],
        pacer: Pacer | None = None,
        solo: Callable[[], Awaitable[object]] | None = None,
    ) -> None:
        self._workload = workload
        self._client = client
        self._clock = clock
        self._worker = worker
        self._on_row = on_row
        self._on_sample = on_sample
        self._pacer = pacer
        self._solo = solo
        self._sent = IndexSet()
        self._due: asyncio.Queue[Turn | None] = asyncio.Queue()
        self._waiting = 0
        self._over = False
        self._soloists: set[asyncio.Task[None]] = set()
        self._watch = LoopWatch(process=worker)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator["Session"]:
        """Open the client and keep the pacing and the self-watch going until the exit."""
        async with self._client:
            keepers = [asyncio.create_task(self._watch.run()), asyncio.create_task(self._sample())]
            if self._pacer is not None:
                keepers.append(asyncio.create_task(self._pace(self._pacer)))
            try:
                yield self
            finally:
                for keeper in keepers:
                    keeper.cancel()
                await asyncio.gather(*keepers, return_exceptions=True)

    async def next_turn(self) -> Turn:
        """The next request of this process; in an open loop it waits until one is due.

        Raises SessionOver once the swarm stops.
        """
        if self._over:
            raise SessionOver
        if self._pacer is None:
            return Turn(self._workload.next_request(), None)
        self._waiting += 1
        try:
            turn = await self._due.get()
        finally:
            self._waiting -= 1
        if turn is None:
            raise SessionOver
        return turn

    async def send(
        self, turn: Turn, user: str, body_extra: dict[str, Any] | None = None
    ) -> Exchange:
        """Send one request, stream its reply and record it, also when it is cut off."""
        exchange = Exchange()
        asked_at = time.perf_counter()
        repeat = turn.request.root in self._sent
        self._sent.add(turn.request.root)
        try:
            await self._client.stream(
                turn.request.prompt, turn.request.max_tokens, exchange, body_extra
            )
        finally:
            if exchange.sent_at is None and not repeat:
                self._sent.discard(turn.request.root)
            sent_at = asked_at if exchange.sent_at is None else exchange.sent_at
            # The loop's timers may fire up to a millisecond early.
            scheduled_at = sent_at if turn.due_at is None else min(turn.due_at, sent_at)
            self._record(exchange, turn.request, scheduled_at, user, repeat)
        return exchange

    def stop(self) -> None:
        """Send nothing new from now on; what was due and never sent is recorded as cancelled."""
        self._over = True
        while not self._due.empty():
            turn = self._due.get_nowait()
            if turn is not None:
                self._record_unsent(turn)
        for _ in range(self._waiting):
            self._due.put_nowait(None)

    async def drain_soloists(self, timeout_s: float) -> None:
        """Without users: let what is in flight finish, and cut off what does not in time."""
        if self._soloists:
            await asyncio.wait(self._soloists, timeout=timeout_s)
        for task in self._soloists:
            task.cancel()
        await asyncio.gather(*self._soloists, return_exceptions=True)

    async def _pace(self, pacer: Pacer) -> None:
        position = -1
        due_s = 0.0
        while not self._over:
            request = self._workload.next_request()
            for _ in range(request.index - position):
                due_s = pacer.next_s()
            position = request.index
            due_at = self._clock.to_perf(due_s)
            await asyncio.sleep(max(0.0, due_at - time.perf_counter()))
            if self._over:
                return
            self._watch.send_late(max(0.0, time.perf_counter() - due_at) * 1000)
            self._release(Turn(request, due_at))

    def _release(self, turn: Turn) -> None:
        self._due.put_nowait(turn)
        if self._solo is not None:
            task = asyncio.create_task(self._play_solo(self._solo))
            self._soloists.add(task)
            task.add_done_callback(self._soloists.discard)

    async def _play_solo(self, solo: Callable[[], Awaitable[object]]) -> None:
        await solo()

    async def _sample(self) -> None:
        while True:
            await asyncio.sleep(1.0)
            self._on_sample(self._watch.sample(self._clock.now_s()))

    def _record(
        self, exchange: Exchange, request: Request, scheduled_at: float, user: str, repeat: bool
    ) -> None:
        record, gaps_ms = to_record(
            exchange,
            request,
            scheduled_at=scheduled_at,
            clock=self._clock,
            worker=self._worker,
            user=user,
            repeat=repeat,
        )
        self._on_row(record, gaps_ms)

    def _record_unsent(self, turn: Turn) -> None:
        exchange = Exchange()
        exchange.outcome = "cancelled"
        exchange.error = NEVER_SENT
        exchange.end_at = time.perf_counter()
        self._record(exchange, turn.request, turn.due_at or exchange.end_at, "", False)
