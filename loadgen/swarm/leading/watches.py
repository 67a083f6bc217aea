"""Samples of the engine each second; whether it, and the RAG service, are still there."""

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from functools import partial
from typing import Any

from loadgen.client.failures import ConnectFailed, Truncated
from loadgen.client.host import Host
from loadgen.errors import HostError
from loadgen.stats.clock import RunClock
from loadgen.stats.memory import GpuMemory
from loadgen.stats.server_counters import ServerCourse
from loadgen.stats.server_metrics import MetricsScraper, MetricsSources, ServerSample
from loadgen.swarm.engine import Engine

KEPT = 60
"""So many samples are kept, for those who look at the last seconds."""

REFUSALS_UNTIL_DEAD = 3
PAUSE_S = 1.0
ANSWER_TIMEOUT_S = 5.0


class ServerWatch:
    """Watches one host during one run; both callbacks are called on the hub.

    `course` counts from the last sample of the warm-up on, `whole` from the first sample.
    """

    def __init__(
        self,
        on_sample: Callable[[ServerSample], None],
        on_death: Callable[[], None],
        warmup_s: float = 0.0,
    ) -> None:
        self.recent: deque[ServerSample] = deque(maxlen=KEPT)
        self.whole, self.course = ServerCourse(), ServerCourse(warmup_s)
        self._on_sample = on_sample
        self._on_death = on_death
        self._lifetime = contextlib.AsyncExitStack()

    def open(self, url: str, target: Mapping[str, Any], clock: RunClock) -> None:
        """Take the sample before anything is sent, and go on each second."""
        sources = MetricsSources(
            engine_url=url,
            lmcache_url=target.get("lmcache_url"),
            engine_pid=target.get("engine_pid"),
            lmcache_pid=target.get("lmcache_pid"),
            gpu=GpuMemory.open() if target else None,
        )
        engine = Engine.of_process()
        scraper = Scraper(
            sources,
            clock,
            on_sample=lambda sample: engine.post(partial(self._take, sample)),
            on_death=lambda: engine.post(self._on_death),
        )
        engine.run(self._lifetime.enter_async_context(scraper.running()))

    def close(self) -> None:
        """Take the last sample; may be called again."""
        engine = Engine.of_process()
        engine.run(self._lifetime.aclose())
        engine.drain()

    def _take(self, sample: ServerSample) -> None:
        for course in (self.whole, self.course):
            course.add(sample)
        self.recent.append(sample)
        self._on_sample(sample)


class Scraper:
    """`on_sample` gets every sample, `on_death` is called once when the engine refuses for good.

    Both are called on the loop.
    """

    def __init__(
        self,
        sources: MetricsSources,
        clock: RunClock,
        on_sample: Callable[[ServerSample], None],
        on_death: Callable[[], None],
    ) -> None:
        self._pages = MetricsScraper(sources)
        self._clock = clock
        self._on_sample = on_sample
        self._on_death = on_death

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator["Scraper"]:
        """Take a first sample before anything is sent, then one each second, then a last one."""
        async with self._pages:
            await self.take()
            keeper = asyncio.create_task(self._watch())
            try:
                yield self
            finally:
                keeper.cancel()
                await asyncio.gather(keeper, return_exceptions=True)
                await self.take()

    async def take(self) -> ServerSample:
        """One sample now."""
        sample = await self._pages.scrape(self._clock.now_s())
        self._on_sample(sample)
        return sample

    async def _watch(self) -> None:
        refusals = 0
        while refusals < REFUSALS_UNTIL_DEAD:
            await asyncio.sleep(1.0)
            sample = await self.take()
            refusals = refusals + 1 if sample.reachable is False else 0
        self._on_death()


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
