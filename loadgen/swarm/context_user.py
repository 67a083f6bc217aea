"""`ContextUser`: an AsyncUser that sends the requests or batches of kvswarm's workload."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, ClassVar, TypeVar

from locust.exception import StopUser
from locust.user.task import LOCUST_STATE_STOPPING

from loadgen.client.exchange import Exchange
from loadgen.client.settings import check_fields
from loadgen.record import BatchRecord
from loadgen.swarm.plugin import stage_of
from loadgen.swarm.sending.batch_sender import BatchTurn
from loadgen.swarm.sending.dispenser import SessionOver
from loadgen.swarm.sending.request_sender import Turn
from loadgen.swarm.sending.session import Session
from loadgen.swarm.user import AsyncTask, AsyncUser

T = TypeVar("T")
GOOD = ("ok", "cancelled")
PAUSE_S = 0.1
LONGEST_PAUSE_S = 2.0
"""Of a user between the beginnings of requests that fail; it doubles with each in a row."""


class ContextUser(AsyncUser):
    """Takes the next request of the swarm's stream and sends it.

    All users of all processes share one seeded stream; whoever is free takes what is next. A class
    with `sends_batches` takes the stream in batches, `--batch-size` requests at a time.
    """

    abstract = True
    sends_batches: ClassVar[bool] = False
    _idle: asyncio.Timeout | None = None
    """While it waits for what is to be sent; ends when the user is to leave."""

    def __init__(self, environment: Any) -> None:
        super().__init__(environment)
        self._stage = stage_of(environment)
        self.name = self._stage.next_name(type(self))
        self._failures = 0

    async def next_turn(self) -> Turn:
        """The next request; in an open loop this waits until it is due. Send it in the task that
        took it: what that took and has not begun to send is given up with the next, or at its end.

        Raises StopUser once the swarm or this user is stopping.
        """
        return await self._next(Session.turn_now, Session.next_turn)

    async def next_batch(self) -> BatchTurn:
        """The next batch; in an open loop this waits until it is due.

        Raises StopUser once the swarm or this user is stopping, or all `--batches` are sent.
        """
        return await self._next(Session.batch_now, Session.next_batch)

    async def send(self, turn: Turn, body_extra: dict[str, Any] | None = None) -> Exchange:
        """Send it, stream the reply, record it. Raises only when the user is killed, and UsageError
        for a `body_extra` with fields that `--extra-body` may not have.

        In a closed loop a user whose requests fail at once backs off before this returns.
        """
        check_fields(body_extra or {}, "body_extra")
        began_at = time.perf_counter()
        exchange = await self._session().send(turn, self.name, body_extra)
        unsent = exchange.sent_at is None or exchange.outcome == "connect_error"
        await self._back_off(turn.due_at, began_at, exchange.outcome in GOOD, unsent)
        return exchange

    async def send_batch(self, turn: BatchTurn) -> BatchRecord:
        """Send all requests of a batch at once, stream the replies, record them and the batch.

        Raises only when the user is killed. It backs off as in `send`.
        """
        began_at = time.perf_counter()
        record = await self._session().send_batch(turn, self.name)
        failed = record.outcome == "failed"
        await self._back_off(turn.due_at, began_at, not failed, failed)
        return record

    async def _next(
        self, now: Callable[[Session], T | None], wait: Callable[[Session], Awaitable[T]]
    ) -> T:
        try:
            if self._state != LOCUST_STATE_STOPPING:
                turn = now(self._session())
                return await self._waited(wait) if turn is None else turn
        except (SessionOver, TimeoutError):
            pass
        raise StopUser

    async def _waited(self, wait: Callable[[Session], Awaitable[T]]) -> T:
        try:
            async with asyncio.timeout(None) as self._idle:
                return await wait(self._session())
        finally:
            self._idle = None

    def _wake(self) -> None:
        super()._wake()
        if self._state == LOCUST_STATE_STOPPING and self._idle and not self._idle.expired():
            self._idle.reschedule(0)

    async def _play(self, task: AsyncTask) -> None:
        try:
            await super()._play(task)
        finally:  # what it took and did not send holds up nobody
            if self._stage.session is not None:
                self._stage.session.give_up()

    async def _back_off(
        self, due_at: float | None, began_at: float, good: bool, at_once: bool
    ) -> None:
        """Nobody waits for what is refused: do not spin on a host that is away or says no.

        One failure among good replies costs no pause, unless it has to be `at_once`.
        """
        self._failures = 0 if good else self._failures + 1
        steps = self._failures - (1 if at_once else 2)
        if due_at is not None or good or steps < 0:
            return
        pause_s = min(PAUSE_S * 2 ** min(steps, 10), LONGEST_PAUSE_S)
        left_s = began_at + pause_s - time.perf_counter()
        if left_s > 0:
            await self._sleep(left_s)

    def _session(self) -> Session:
        session = self._stage.session
        if session is None:
            raise StopUser
        return session
