"""`ContextUser`: an AsyncUser that sends the requests or batches of kvswarm's workload."""

import asyncio
from typing import Any, ClassVar

from locust.exception import StopUser

from loadgen.client.exchange import Exchange
from loadgen.record import BatchRecord
from loadgen.swarm.plugin import stage_of
from loadgen.swarm.sending.batch_sender import BatchTurn
from loadgen.swarm.sending.dispenser import SessionOver
from loadgen.swarm.sending.request_sender import Turn
from loadgen.swarm.sending.session import Session
from loadgen.swarm.user import AsyncUser

REFUSED_PAUSE_S = 0.1
"""In a closed loop nobody waits for what cannot be sent: do not spin on a host that is away."""


class ContextUser(AsyncUser):
    """Takes the next request of the swarm's stream and sends it.

    All users of all processes share one seeded stream; whoever is free takes what is next. A class
    with `sends_batches` takes the stream in batches, `--batch-size` requests at a time.
    """

    abstract = True
    sends_batches: ClassVar[bool] = False

    def __init__(self, environment: Any) -> None:
        super().__init__(environment)
        self._stage = stage_of(environment)
        self.name = self._stage.next_name(type(self))

    async def next_turn(self) -> Turn:
        """The next request; in an open loop this waits until it is due.

        Raises StopUser once the swarm is stopping.
        """
        try:
            return await self._session().next_turn()
        except SessionOver:
            raise StopUser from None

    async def next_batch(self) -> BatchTurn:
        """The next batch; in an open loop this waits until it is due.

        Raises StopUser once the swarm is stopping or has sent all its `--batches`.
        """
        try:
            return await self._session().next_batch()
        except SessionOver:
            raise StopUser from None

    async def send(self, turn: Turn, body_extra: dict[str, Any] | None = None) -> Exchange:
        """Send it, stream the reply, record it. Raises only when the user is killed."""
        exchange = await self._session().send(turn, self.name, body_extra)
        unsent = exchange.sent_at is None or exchange.outcome == "connect_error"
        if unsent and turn.due_at is None:
            await asyncio.sleep(REFUSED_PAUSE_S)
        return exchange

    async def send_batch(self, turn: BatchTurn) -> BatchRecord:
        """Send all requests of a batch at once, stream the replies, record them and the batch.

        Raises only when the user is killed.
        """
        record = await self._session().send_batch(turn, self.name)
        if record.outcome == "failed" and turn.due_at is None:
            await asyncio.sleep(REFUSED_PAUSE_S)
        return record

    def _session(self) -> Session:
        session = self._stage.session
        if session is None:
            raise StopUser
        return session
