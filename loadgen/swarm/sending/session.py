"""One process's part in one swarm, on the loop's side: workload, client, pacing, records."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from dataclasses import dataclass
from typing import Any

from loadgen.client.client import StreamingClient
from loadgen.client.deadlines import time_limit
from loadgen.client.exchange import Exchange
from loadgen.context import Batch, Request
from loadgen.record import CAME_TOO_LATE, NEVER_SENT, BatchRecord, RequestRecord
from loadgen.stats.clock import RunClock
from loadgen.stats.self_watch import MAX_LAG_MS, ClientSample, LoopWatch
from loadgen.stats.silence import HostContact
from loadgen.swarm.sending.batch_sender import BatchForm, BatchSender, BatchTurn
from loadgen.swarm.sending.dispenser import Dispenser, Taken, Unit
from loadgen.swarm.sending.labels import Labels
from loadgen.swarm.sending.request_sender import RequestSender, Turn
from loadgen.swarm.sending.retriever import Retriever
from loadgen.workload.arrivals import Pacer
from loadgen.workload.batches import Batching
from loadgen.workload.trace.workload import TraceWorkload
from loadgen.workload.workload import Workload

WARM_CONNECTIONS_S = 0.2
TURN_NOT_COME = "a turn of a conversation whose last reply had not ended"
NOT_OF_THE_HOST = (TURN_NOT_COME, CAME_TOO_LATE)
"""Errors of requests that were cancelled before any user waited for them."""


@dataclass(frozen=True, slots=True)
class Hooks:
    """Who is told what, on the loop; none of them may block.

    `row` is a request's record with its inter-token gaps in ms. `spent` is called once, when the
    last of a limited number of requests or batches has ended; a `share` of 0 is spent from the
    start. `failed` is told why no further request can be made, as when a trace has vanished.
    """

    row: Callable[[RequestRecord, list[float]], None]
    sample: Callable[[ClientSample], None]
    contact: Callable[[HostContact], None] = lambda contact: None
    batch: Callable[[BatchRecord], None] = lambda record: None
    spent: Callable[[], None] = lambda: None
    failed: Callable[[Exception], None] = lambda error: None


class Session:
    """Hands requests or batches to users and turns what came of them into records.

    Lives on the loop. With `batching` the users send batches, else single requests, and with a
    `retriever` these behind what it finds; `share` is how many of them this process sends, None
    for no end. So many `connections` are opened before the first request, where that is quick.
    """

    def __init__(
        self,
        *,
        workload: Workload | TraceWorkload,
        client: StreamingClient,
        clock: RunClock,
        worker: str,
        hooks: Hooks,
        pacer: Pacer | None = None,
        solo: Callable[[], Coroutine[Any, Any, None]] | None = None,
        labels: Labels | None = None,
        retriever: Retriever | None = None,
        batching: Batching | None = None,
        batch_form: BatchForm | None = None,
        share: int | None = None,
        connections: int = 0,
        max_lag_ms: float = MAX_LAG_MS,
    ) -> None:
        self._client = client
        self._clock = clock
        self._worker = worker
        self._hooks = hooks
        self._solo = solo
        self._retriever = retriever
        self._left = share
        self._connections = connections
        self._unsent: dict[int, tuple[Unit, asyncio.Task[Any] | None]] = {}
        """What was taken and is not begun, by index, and by whom."""
        self._takers: dict[asyncio.Task[Any] | None, int] = {}
        """What each of them took."""
        self._loop: asyncio.AbstractEventLoop | None = None
        """Where it runs: to ask for it is a system call."""
        self._soloists: set[asyncio.Task[None]] = set()
        self._in_flight = 0
        self._none_in_flight = asyncio.Event()
        self._watch = LoopWatch(process=worker, max_lag_ms=max_lag_ms)
        units: Iterator[Unit] = workload.requests()
        self._is_batched = False
        if batching is not None and not isinstance(workload, TraceWorkload):
            self._is_batched, units = True, workload.batches(batching)
        self._dispenser = Dispenser(self._guarded(units), clock, pacer, self._released)
        labels = labels or Labels(False, {})
        self._sender = RequestSender(
            client=client,
            clock=clock,
            worker=worker,
            labels=labels,
            retriever=retriever,
            on_row=hooks.row,
        )
        self._batch_sender = BatchSender(
            batch_form or BatchForm(),
            client=client,
            clock=clock,
            worker=worker,
            labels=labels,
            on_row=hooks.row,
            on_batch=hooks.batch,
        )

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator["Session"]:
        """Open the clients and keep the pacing and the self-watch going until the exit."""
        self._loop = asyncio.get_running_loop()
        async with self._client, self._retriever or contextlib.nullcontext():
            if self._connections:
                await self._client.warm(self._connections, WARM_CONNECTIONS_S)
            keepers = [
                asyncio.create_task(self._watch.run()),
                asyncio.create_task(self._sample()),
                asyncio.create_task(self._pace()),
            ]
            try:
                if self._left == 0:
                    self._hooks.spent()
                yield self
            finally:
                for keeper in keepers:
                    keeper.cancel()
                await asyncio.gather(*keepers, return_exceptions=True)
                self._take_sample()  # a pause may have been the last thing that happened

    def turn_now(self) -> Turn | None:
        """The next request of this process, None where it has to be waited for.

        Raises SessionOver once the swarm stops.
        """
        if self._is_batched:
            raise RuntimeError("this swarm sends batches: take `next_batch()` in every user class")
        taken = self._take()
        return None if taken is None else _turn(taken)

    async def next_turn(self) -> Turn:
        """The same, and this waits for it. Raises SessionOver."""
        return self.turn_now() or _turn(self._noted(await self._dispenser.next()))

    def batch_now(self) -> BatchTurn | None:
        """The next batch of this process, None where it has to be waited for.

        Raises SessionOver once the swarm stops or has sent all its batches.
        """
        if not self._is_batched:
            raise RuntimeError("batches are sent by user classes with `sends_batches = True`")
        taken = self._take()
        return None if taken is None else _batch_turn(taken)

    async def next_batch(self) -> BatchTurn:
        """The same, and this waits for it. Raises SessionOver."""
        return self.batch_now() or _batch_turn(self._noted(await self._dispenser.next()))

    async def send(
        self, turn: Turn, user: str, body_extra: dict[str, Any] | None = None
    ) -> Exchange:
        """Send one request, stream its reply and record it, also when it is cut off."""
        unit = self._begun(turn.request.index)
        try:
            return await self._sender.send(turn, user, body_extra)
        finally:
            self._ended(unit)

    async def send_batch(self, turn: BatchTurn, user: str) -> BatchRecord:
        """Send one batch and record it and its members, also when it is cut off."""
        unit = self._begun(turn.batch.index)
        try:
            return await self._batch_sender.send(turn, user)
        finally:
            self._ended(unit)

    def give_up(self) -> None:
        """What the running task took last and did not begin to send holds up nobody."""
        if not self._takers:  # as nearly always
            return
        index = self._takers.pop(asyncio.current_task(self._loop), None)
        if index is not None:
            unit, _ = self._unsent.pop(index)
            self._end(unit)

    def stop(self) -> None:
        """Send nothing new from now on; what was due and never sent is recorded as cancelled."""
        errors = NEVER_SENT, TURN_NOT_COME, CAME_TOO_LATE
        for units, error in zip(self._dispenser.stop(), errors, strict=True):
            for unit, due_at in units:
                if isinstance(unit, Batch):
                    self._batch_sender.record_unsent(BatchTurn(unit, due_at), error)
                else:
                    self._sender.record_unsent(Turn(unit, due_at), error)

    async def drain(self, timeout_s: float) -> None:
        """After `stop`: let what is in flight finish. What no user waits for is cut off after
        `timeout_s`; users are left to who started them."""
        with contextlib.suppress(TimeoutError):
            async with time_limit(timeout_s):
                if self._soloists:
                    await asyncio.wait(self._soloists)
                while self._in_flight:
                    self._none_in_flight.clear()
                    await self._none_in_flight.wait()
        for task in self._soloists:
            task.cancel()
        await asyncio.gather(*self._soloists, return_exceptions=True)

    def _guarded(self, units: Iterator[Unit]) -> Iterator[Unit]:
        try:
            yield from units
        except Exception as error:
            self._hooks.failed(error)

    async def _pace(self) -> None:
        try:
            await self._dispenser.pace()
        except Exception as error:
            self._hooks.failed(error)

    def _take(self) -> Taken | None:
        self.give_up()
        taken = self._dispenser.take()
        return None if taken is None else self._noted(taken)

    def _noted(self, taken: Taken) -> Taken:
        unit, _ = taken
        taker = asyncio.current_task(self._loop)
        self._unsent[unit.index], self._takers[taker] = (unit, taker), unit.index
        return taken

    def _begun(self, index: int) -> Unit | None:
        unit, taker = self._unsent.pop(index, (None, None))
        if self._takers.get(taker) == index:
            del self._takers[taker]
        self._in_flight += 1
        return unit

    def _ended(self, unit: Unit | None) -> None:
        self._in_flight -= 1
        if not self._in_flight:
            self._none_in_flight.set()
        self._end(unit)

    def _end(self, unit: Unit | None) -> None:
        """None where it has been sent or given up before."""
        if unit is None:
            return
        self._dispenser.end(unit)
        if self._left is not None:
            self._left -= 1
            if self._left == 0:
                self._hooks.spent()

    def _released(self, late_ms: float) -> None:
        self._watch.send_late(late_ms)
        if self._solo is not None:
            task = asyncio.create_task(self._solo())
            self._soloists.add(task)
            task.add_done_callback(self._soloists.discard)

    async def _sample(self) -> None:
        while True:
            await asyncio.sleep(1.0)
            self._take_sample()
            self._hooks.contact(self._contact())

    def _take_sample(self) -> None:
        self._hooks.sample(self._watch.sample(self._clock.now_s(), self._client.log.take()))

    def _contact(self) -> HostContact:
        heard_at = self._client.heard_at(time.perf_counter() - 1.0)
        heard_s = None if heard_at is None else self._clock.to_run_s(heard_at)
        return HostContact(self._worker, heard_s, self._client.is_waiting)


def _turn(taken: Taken) -> Turn:
    request, due_at = taken
    assert isinstance(request, Request)
    return Turn(request, due_at)


def _batch_turn(taken: Taken) -> BatchTurn:
    batch, due_at = taken
    assert isinstance(batch, Batch)
    return BatchTurn(batch, due_at)
