"""`ContextUser`: an AsyncUser that sends the requests of kvswarm's workload."""

import asyncio
from typing import Any

from locust.exception import StopUser

from loadgen.client.exchange import Exchange
from loadgen.swarm.plugin import stage_of
from loadgen.swarm.session import SessionOver, Turn
from loadgen.swarm.user import AsyncUser

REFUSED_PAUSE_S = 0.1
"""In a closed loop nobody waits for a host that refuses connections: do not spin on it."""


class ContextUser(AsyncUser):
    """Takes the next request of the swarm's stream and sends it.

    All users of all processes share one seeded stream; whoever is free takes what is next.
    """

    abstract = True

    def __init__(self, environment: Any) -> None:
        super().__init__(environment)
        self._stage = stage_of(environment)
        self.name = self._stage.next_name(type(self))

    async def next_turn(self) -> Turn:
        """The next request; in an open loop this waits until it is due.

        Raises StopUser once the swarm is stopping.
        """
        session = self._stage.session
        if session is None:
            raise StopUser
        try:
            return await session.next_turn()
        except SessionOver:
            raise StopUser from None

    async def send(self, turn: Turn, body_extra: dict[str, Any] | None = None) -> Exchange:
        """Send it, stream the reply, record it. Raises only when the user is killed."""
        session = self._stage.session
        if session is None:
            raise StopUser
        exchange = await session.send(turn, self.name, body_extra)
        if exchange.outcome == "connect_error" and turn.due_at is None:
            await asyncio.sleep(REFUSED_PAUSE_S)
        return exchange
