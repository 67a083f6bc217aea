"""Asks the engine each second how it is, on the loop; notices when it is gone."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

from loadgen.stats.clock import RunClock
from loadgen.stats.server_metrics import MetricsScraper, MetricsSources, ServerSample

REFUSALS_UNTIL_DEAD = 3


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
