"""What is under way: counted, so that its end can be waited for."""

import asyncio


class InFlight:
    """A count; lives on the loop."""

    def __init__(self) -> None:
        self._count = 0
        self._none = asyncio.Event()

    def enter(self) -> None:
        """One more."""
        self._count += 1

    def leave(self) -> None:
        """One less."""
        self._count -= 1
        if not self._count:
            self._none.set()

    async def none(self) -> None:
        """Return once there is none."""
        while self._count:
            self._none.clear()
            await self._none.wait()
