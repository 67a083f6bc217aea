"""Lets the turns of a conversation go out one after another."""

import asyncio
import time

from loadgen.context import Request


class TurnGate:
    """A turn waits until the one before it has ended; other requests never wait.

    `enter` has to be called in the order of the turns. Lives on the loop.
    """

    def __init__(self) -> None:
        self._latest: dict[str, asyncio.Future[float]] = {}
        self._open: dict[int, asyncio.Future[float]] = {}

    async def enter(self, request: Request) -> float | None:
        """When the turn before this one ended (`time.perf_counter()` seconds), None without one."""
        if not request.session_id:
            return None
        before = self._latest.get(request.session_id)
        turn: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        self._latest[request.session_id] = self._open[request.index] = turn
        # Shielded: whoever gives up waiting must not end the turn that others wait for, too.
        return None if before is None else await asyncio.shield(before)

    def leave(self, request: Request) -> None:
        """The turn has ended, or will not be taken."""
        turn = self._open.pop(request.index, None)
        if turn is None:
            return
        turn.set_result(time.perf_counter())
        if self._latest.get(request.session_id) is turn:
            del self._latest[request.session_id]
