"""Sends a single request, behind a retrieved context where it has to be, and records it."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from loadgen.client.client import StreamingClient
from loadgen.client.exchange import Exchange
from loadgen.client.failures import StreamFailure
from loadgen.context import Request
from loadgen.record import Outcome, RequestRecord
from loadgen.stats.clock import RunClock
from loadgen.swarm.sending.labels import Labels
from loadgen.swarm.sending.recording import to_record
from loadgen.swarm.sending.retriever import FoundContext, Retriever

CUT_OFF_RETRIEVAL = "cancelled during its retrieval"


@dataclass(frozen=True, slots=True)
class Turn:
    """A request and, in an open loop, when it was meant to go (`time.perf_counter()` seconds)."""

    request: Request
    due_at: float | None


class RequestSender:
    """Every request that was begun gives one record.

    `on_row` is called on the loop and must not block.
    """

    def __init__(
        self,
        *,
        client: StreamingClient,
        clock: RunClock,
        worker: str,
        labels: Labels,
        retriever: Retriever | None,
        on_row: Callable[[RequestRecord, list[float]], None],
    ) -> None:
        self._client = client
        self._clock = clock
        self._worker = worker
        self._labels = labels
        self._retriever = retriever
        self._on_row = on_row
        self._sent = IndexSet()

    async def send(
        self, turn: Turn, user: str, body_extra: dict[str, Any] | None = None
    ) -> Exchange:
        """Retrieve where that is asked for, send, stream the reply.

        Raises only CancelledError, after everything is recorded.
        """
        sending = _RequestSending(turn, user, time.perf_counter())
        try:
            if self._retriever is None or await self._retrieve(self._retriever, sending):
                await self._stream(sending, body_extra)
        finally:
            self._record(sending)
        return sending.exchange

    def record_unsent(self, turn: Turn, error: str) -> None:
        """A request that was due and never sent."""
        sending = _RequestSending(turn, "", time.perf_counter())
        sending.give_up("cancelled", error)
        self._record(sending)

    async def _retrieve(self, retriever: Retriever, sending: "_RequestSending") -> bool:
        try:
            sending.found = await retriever.find(sending.turn.request)
        except asyncio.CancelledError:
            sending.give_up("cancelled", CUT_OFF_RETRIEVAL)
            raise
        except StreamFailure as failure:
            sending.give_up(failure.outcome, str(failure))
        return sending.found is not None

    async def _stream(self, sending: "_RequestSending", body_extra: dict[str, Any] | None) -> None:
        request, exchange, found = sending.turn.request, sending.exchange, sending.found
        label = request.label if found is None else found.label
        extra, sending.label = self._labels.tag(label, body_extra)
        sending.kv_scope = self._labels.kv_scope(body_extra)
        told = None if found is None else found.label or ""
        sending.repeat = request.root in self._sent
        self._sent.add(request.root)
        try:
            await self._client.stream(
                request.prompt if found is None else found.prompt,
                request.max_tokens,
                exchange,
                extra,
                time.perf_counter() - sending.asked_at,
                self._labels.session(request, sending.user, told),
            )
        finally:
            if exchange.sent_at is None and not sending.repeat:
                self._sent.discard(request.root)

    def _record(self, sending: "_RequestSending") -> None:
        record, gaps_ms = to_record(
            sending.exchange,
            sending.turn.request,
            scheduled_at=sending.scheduled_at,
            clock=self._clock,
            worker=self._worker,
            user=sending.user,
            repeat=sending.repeat,
            label=sending.label,
            kv_scope=sending.kv_scope,
            found=sending.found,
        )
        self._on_row(record, gaps_ms)


class _RequestSending:
    """A request under way."""

    __slots__ = ("asked_at", "exchange", "found", "kv_scope", "label", "repeat", "turn", "user")

    def __init__(self, turn: Turn, user: str, asked_at: float) -> None:
        self.turn = turn
        self.user = user
        self.asked_at = asked_at
        self.exchange = Exchange()
        self.found: FoundContext | None = None
        self.label = self.kv_scope = ""
        self.repeat = False

    @property
    def scheduled_at(self) -> float:
        """When it was due, else when it was sent or, before that, its retrieval began."""
        sent_at = self.exchange.sent_at
        began_at = self.asked_at if sent_at is None or self.found is not None else sent_at
        # The loop's timers may fire up to a millisecond early.
        return began_at if self.turn.due_at is None else min(self.turn.due_at, began_at)

    def give_up(self, outcome: Outcome, error: str) -> None:
        """It ends here, before it was sent."""
        self.exchange.outcome, self.exchange.error = outcome, error
        self.exchange.end_at = time.perf_counter()


class IndexSet:
    """Holds numbers from 0 on; its size grows with the largest of them."""

    def __init__(self) -> None:
        self._bits = bytearray()

    def __contains__(self, index: int) -> bool:
        byte = index >> 3
        return byte < len(self._bits) and bool(self._bits[byte] >> (index & 7) & 1)

    def add(self, index: int) -> None:
        """Put a number in."""
        missing = (index >> 3) + 1 - len(self._bits)
        if missing > 0:
            self._bits.extend(bytes(missing))
        self._bits[index >> 3] |= 1 << (index & 7)

    def discard(self, index: int) -> None:
        """Take a number out if it is in."""
        if index in self:
            self._bits[index >> 3] &= ~(1 << (index & 7))
