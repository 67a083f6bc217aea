"""Whether the RAG service that a swarm asks is still there."""

import asyncio
import contextlib
from collections.abc import Callable

from loadgen.client.failures import ConnectFailed, Truncated
from loadgen.client.host import Host
from loadgen.errors import HostError
from loadgen.swarm.engine import Engine

REFUSALS_UNTIL_DEAD = 3
PAUSE_S = 1.0
ANSWER_TIMEOUT_S = 5.0


class RagWatch:
    """Asks one service each second during one run; `on_death` is called once, on the hub.

    A service that takes long to answer is busy, not dead.
    """

    def __init__(self, on_death: Callable[[], None]) -> None:
        self._on_death = on_death
        self._lifetime = contextlib.AsyncExitStack()

    def open(self, url: str) -> None:
        """Begin to ask."""
        Engine.of_process().run(self._begin(url))

    def close(self) -> None:
        """Ask no more; may be called again."""
        Engine.of_process().run(self._lifetime.aclose())

    async def _begin(self, url: str) -> None:
        opened = Host.opened(url, {}, ANSWER_TIMEOUT_S)
        host = await self._lifetime.enter_async_context(opened)
        watch = asyncio.create_task(self._watch(host))
        self._lifetime.push_async_callback(_end, watch)

    async def _watch(self, host: Host) -> None:
        refusals = 0
        while refusals < REFUSALS_UNTIL_DEAD:
            await asyncio.sleep(PAUSE_S)
            refusals = refusals + 1 if await _refuses(host) else 0
        Engine.of_process().post(self._on_death)


async def _refuses(host: Host) -> bool:
    try:
        await host.ask("GET", "/health")
    except HostError as error:
        return isinstance(error.__cause__, ConnectFailed | Truncated)
    return False


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
