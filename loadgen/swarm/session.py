"""One process's part in one swarm, on the loop's side: workload, client, pacing, records."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from loadgen.client.client import StreamingClient
from loadgen.client.exchange import Exchange
from loadgen.context import Batch, Request
from loadgen.record import BatchRecord, RequestRecord
from loadgen.stats.clock import RunClock
from loadgen.stats.self_watch import ClientSample, LoopWatch
from loadgen.swarm.batch_sender import BatchForm, BatchSender, BatchTurn
from loadgen.swarm.dispenser import Dispenser
from loadgen.swarm.index_set import IndexSet
from loadgen.swarm.labels import Labels
from loadgen.swarm.recording import to_record
from loadgen.workload.arrivals import Pacer
from loadgen.workload.batches import Batching
from loadgen.workload.workload import Workload

NEVER_SENT = "due before the end of the run, but every user was busy"


@dataclass(frozen=True, slots=True)
class Turn:
    """A request and, in an open loop, when it was meant to go (`time.perf_counter()` seconds)."""

    request: Request
    due_at: float | None


@dataclass(frozen=True, slots=True)
class Hooks:
    """Who is told what, on the loop; none of them may block.

    `row` is a request's record with its inter-token gaps in ms. `spent` is called once, when the
    last of a limited number of batches has ended; those of `share` 0 are spent from the start.
    """

    row: Callable[[RequestRecord, list[float]], None]
    sample: Callable[[ClientSample], None]
    batch: Callable[[BatchRecord], None] = lambda record: None
    spent: Callable[[], None] = lambda: None


class Session:
    """Hands requests or batches to users and turns what came of them into records.

    Lives on the loop. With `batching` the users send batches, else single requests; `share` is
    how many batches this process sends, None for no end.
    """

    def __init__(
        self,
        *,
        workload: Workload,
        client: StreamingClient,
        clock: RunClock,
        worker: str,
        hooks: Hooks,
        pacer: Pacer | None = None,
        solo: Callable[[], Awaitable[object]] | None = None,
        labels: Labels | None = None,
        batching: Batching | None = None,
        batch_form: BatchForm | None = None,
        share: int | None = None,
    ) -> None:
        self._client = client
        self._clock = clock
        self._worker = worker
        self._hooks = hooks
        self._solo = solo
        self._labels = labels or Labels(False, {})
        self._left = share
        self._sent = IndexSet()
        self._soloists: set[asyncio.Task[None]] = set()
        self._watch = LoopWatch(process=worker)
        self._requests: Dispenser[Request] | None = None
        self._batches: Dispenser[Batch] | None = None
        if batching is None:
            self._requests = Dispenser(workload.requests(), clock, pacer, self._released)
        else:
            self._batches = Dispenser(workload.batches(batching), clock, pacer, self._released)
        self._batch_sender = BatchSender(
            batch_form or BatchForm(),
            client=client,
            clock=clock,
            worker=worker,
            labels=self._labels,
            on_row=hooks.row,
            on_batch=hooks.batch,
        )

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator["Session"]:
        """Open the client and keep the pacing and the self-watch going until the exit."""
        async with self._client:
            keepers = [
                asyncio.create_task(self._watch.run()),
                asyncio.create_task(self._sample()),
                asyncio.create_task(self._dispenser.pace()),
            ]
            try:
                if self._left == 0:
                    self._hooks.spent()
                yield self
            finally:
                for keeper in keepers:
                    keeper.cancel()
                await asyncio.gather(*keepers, return_exceptions=True)

    async def next_turn(self) -> Turn:
        """The next request of this process; in an open loop it waits until one is due.

        Raises SessionOver once the swarm stops.
        """
        if self._requests is None:
            raise RuntimeError("this swarm sends batches: take `next_batch()` in every user class")
        return Turn(*await self._requests.next())

    async def next_batch(self) -> BatchTurn:
        """The next batch of this process; in an open loop it waits until one is due.

        Raises SessionOver once the swarm stops or has sent all its batches.
        """
        if self._batches is None:
            raise RuntimeError("batches are sent by user classes with `sends_batches = True`")
        return BatchTurn(*await self._batches.next())

    async def send(
        self, turn: Turn, user: str, body_extra: dict[str, Any] | None = None
    ) -> Exchange:
        """Send one request, stream its reply and record it, also when it is cut off."""
        exchange = Exchange()
        extra, label = self._labels.tag(turn.request.context_id, body_extra)
        asked_at = time.perf_counter()
        repeat = turn.request.root in self._sent
        self._sent.add(turn.request.root)
        try:
            await self._client.stream(turn.request.prompt, turn.request.max_tokens, exchange, extra)
        finally:
            if exchange.sent_at is None and not repeat:
                self._sent.discard(turn.request.root)
            sent_at = asked_at if exchange.sent_at is None else exchange.sent_at
            # The loop's timers may fire up to a millisecond early.
            scheduled_at = sent_at if turn.due_at is None else min(turn.due_at, sent_at)
            self._record(exchange, turn.request, scheduled_at, user, repeat, label)
        return exchange

    async def send_batch(self, turn: BatchTurn, user: str) -> BatchRecord:
        """Send one batch and record it and its members, also when it is cut off."""
        try:
            return await self._batch_sender.send(turn, user)
        finally:
            self._count_down()

    def stop(self) -> None:
        """Send nothing new from now on; what was due and never sent is recorded as cancelled."""
        if self._requests is not None:
            for request, due_at in self._requests.stop():
                unsent = Exchange(error=NEVER_SENT, end_at=time.perf_counter())
                self._record(unsent, request, due_at, "", False, "")
        if self._batches is not None:
            for batch, due_at in self._batches.stop():
                self._batch_sender.record_unsent(BatchTurn(batch, due_at), NEVER_SENT)

    async def drain_soloists(self, timeout_s: float) -> None:
        """Without users: let what is in flight finish, and cut off what does not in time."""
        if self._soloists:
            await asyncio.wait(self._soloists, timeout=timeout_s)
        for task in self._soloists:
            task.cancel()
        await asyncio.gather(*self._soloists, return_exceptions=True)

    @property
    def _dispenser(self) -> Dispenser[Request] | Dispenser[Batch]:
        dispenser = self._requests or self._batches
        assert dispenser is not None
        return dispenser

    def _count_down(self) -> None:
        if self._left is None:
            return
        self._left -= 1
        if self._left == 0:
            self._hooks.spent()

    def _released(self, late_ms: float) -> None:
        self._watch.send_late(late_ms)
        if self._solo is not None:
            task = asyncio.create_task(self._play_solo(self._solo))
            self._soloists.add(task)
            task.add_done_callback(self._soloists.discard)

    async def _play_solo(self, solo: Callable[[], Awaitable[object]]) -> None:
        await solo()

    async def _sample(self) -> None:
        while True:
            await asyncio.sleep(1.0)
            self._hooks.sample(self._watch.sample(self._clock.now_s()))

    def _record(
        self,
        exchange: Exchange,
        request: Request,
        scheduled_at: float,
        user: str,
        repeat: bool,
        label: str,
    ) -> None:
        record, gaps_ms = to_record(
            exchange,
            request,
            scheduled_at=scheduled_at,
            clock=self._clock,
            worker=self._worker,
            user=user,
            repeat=repeat,
            label=label,
        )
        self._hooks.row(record, gaps_ms)
