"""Sends a batch as N requests at once or as one call with a list of prompts, and records it."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from loadgen.client.client import StreamingClient
from loadgen.client.exchange import Exchange, ListExchange
from loadgen.client.protocol import Usage
from loadgen.context import Batch, Request
from loadgen.record import BatchRecord, RequestRecord, batch_record
from loadgen.stats.clock import RunClock
from loadgen.swarm.sending.labels import Labels
from loadgen.swarm.sending.recording import to_record


@dataclass(frozen=True, slots=True)
class BatchTurn:
    """A batch and, in an open loop, when it was meant to go (`time.perf_counter()` seconds)."""

    batch: Batch
    due_at: float | None


@dataclass(frozen=True, slots=True)
class BatchForm:
    """How a batch goes over the wire.

    `usage_per_choice` says whether the host counts tokens for each choice of a list call.
    """

    as_list: bool = False
    usage_per_choice: bool = False


class BatchSender:
    """Every batch that was begun gives one record, and so does each of its members.

    `on_row` and `on_batch` are called on the loop and must not block.
    """

    def __init__(
        self,
        form: BatchForm,
        *,
        client: StreamingClient,
        clock: RunClock,
        worker: str,
        labels: Labels,
        on_row: Callable[[RequestRecord, list[float]], None],
        on_batch: Callable[[BatchRecord], None],
    ) -> None:
        self._form = form
        self._client = client
        self._clock = clock
        self._worker = worker
        self._labels = labels
        self._on_row = on_row
        self._on_batch = on_batch

    async def send(self, turn: BatchTurn, user: str) -> BatchRecord:
        """Send all members at once and wait for the last reply.

        Raises only CancelledError, after everything is recorded.
        """
        sending = _BatchSending(turn, user, time.perf_counter())
        try:
            if self._form.as_list:
                await self._send_list(sending)
            else:
                await self._send_each(sending)
        finally:
            record = self._close(sending)
        return record

    def record_unsent(self, turn: BatchTurn, error: str) -> BatchRecord:
        """A batch that was due and never sent."""
        return self._close(_BatchSending(turn, "", time.perf_counter()), error)

    async def _send_each(self, sending: "_BatchSending") -> None:
        async with asyncio.TaskGroup() as group:
            for request in sending.turn.batch.requests:
                group.create_task(self._send_one(sending, request))

    async def _send_one(self, sending: "_BatchSending", request: Request) -> None:
        exchange = Exchange()
        extra, label = self._labels.tag(request.label)
        session = self._labels.session(request, sending.user)
        sent = request.prompt, request.max_tokens
        try:
            await self._client.stream(*sent, exchange, extra, session=session)
        finally:
            self._record(sending, request, exchange, label)

    async def _send_list(self, sending: "_BatchSending") -> None:
        requests = sending.turn.batch.requests
        call = ListExchange.of(len(requests), self._form.usage_per_choice)
        extra, label = self._labels.tag(_only_label(requests))
        prompts = [request.prompt for request in requests]
        session = self._labels.session(requests[0], sending.user)
        try:
            await self._client.stream(prompts, requests[0].max_tokens, call, extra, session=session)
        finally:
            call.settle()
            sending.call_usage = call.call_usage
            for request, exchange in zip(requests, call.members, strict=True):
                self._record(sending, request, exchange, label)

    def _close(
        self, sending: "_BatchSending", error: str = "cancelled before it was sent"
    ) -> BatchRecord:
        """Record the batch, and before it the members that had not even begun."""
        for request in sending.turn.batch.requests:
            if request.index not in sending.members:
                unsent = Exchange(error=error, end_at=time.perf_counter())
                self._record(sending, request, unsent, "")
        members = [sending.members[request.index] for request in sending.turn.batch.requests]
        usage = sending.call_usage or Usage(None, None, None)
        counted = usage.prompt_tokens, usage.output_tokens
        record = batch_record(str(sending.turn.batch.index), members, counted)
        self._on_batch(record)
        return record

    def _record(
        self, sending: "_BatchSending", request: Request, exchange: Exchange, label: str
    ) -> None:
        sent_at = sending.asked_at if exchange.sent_at is None else exchange.sent_at
        due_at = sending.turn.due_at
        record, gaps_ms = to_record(
            exchange,
            request,
            scheduled_at=sent_at if due_at is None else min(due_at, sent_at),
            clock=self._clock,
            worker=self._worker,
            user=sending.user,
            repeat=request.root != request.index,
            batch_id=str(sending.turn.batch.index),
            label=label,
        )
        sending.members[request.index] = record
        self._on_row(record, gaps_ms)


class _BatchSending:
    """A batch under way: records of its members by request index."""

    __slots__ = ("asked_at", "call_usage", "members", "turn", "user")

    def __init__(self, turn: BatchTurn, user: str, asked_at: float) -> None:
        self.turn = turn
        self.user = user
        self.asked_at = asked_at
        self.members: dict[int, RequestRecord] = {}
        self.call_usage: Usage | None = None


def _only_label(requests: Sequence[Request]) -> str | None:
    """The label of the one context that all requests share, None when there are several."""
    contexts = {request.context_id for request in requests}
    return requests[0].label if len(contexts) == 1 else None
