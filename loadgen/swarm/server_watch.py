"""The engine's side of a run: samples each second, and whether the engine is still there."""

import contextlib
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from loadgen.stats.clock import RunClock
from loadgen.stats.memory import GpuMemory
from loadgen.stats.server_counters import ServerCourse
from loadgen.stats.server_metrics import MetricsSources, ServerSample
from loadgen.swarm.engine import Engine
from loadgen.swarm.scraper import Scraper

KEPT = 60
"""So many samples are kept, for those who look at the last seconds."""


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
