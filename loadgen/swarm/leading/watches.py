"""Samples of the engine each second; whether it, those of a fleet, and the RAG service are still
there."""

import asyncio
import contextlib
import math
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import fields, replace
from functools import partial
from typing import Any

import gevent
from yarl import URL

from loadgen.client.failures import ConnectFailed, Truncated, one_line
from loadgen.client.host import Host
from loadgen.errors import HostError
from loadgen.stats.clock import RunClock
from loadgen.stats.memory import GpuMemory
from loadgen.stats.server_counters import ServerAccumulator, ServerSample
from loadgen.stats.server_metrics import MetricsScraper, MetricsSource, MetricsSources
from loadgen.swarm.engine import Engine
from loadgen.swarm.leading.supervisor import Supervisor
from loadgen.targets.catalog import usual_series
from loadgen.targets.fleet import EngineDeath

KEPT = 60
"""So many samples are kept, for those who look at the last seconds."""

MOST_NAMED = 5
FIRST_SAMPLE_S = 0.25
"""How long the load waits for the first sample. That takes longer only where `/metrics` hangs."""
LATE_PAGE_S = 1.0
"""A shorter time is hidden by that between two samples."""
REFUSALS_UNTIL_DEAD = 3
PAUSE_S = 1.0
ANSWER_TIMEOUT_S = 5.0


class ServerWatch:
    """Watches one host during one run; both callbacks are called on the hub.

    `counted` begins with the last sample of the warm-up, or before the last reset, `whole` with the
    first sample.
    """

    def __init__(
        self,
        on_sample: Callable[[ServerSample], None],
        on_death: Callable[[], None],
        warmup_s: float = 0.0,
    ) -> None:
        self.recent: deque[ServerSample] = deque(maxlen=KEPT)
        self.whole, self.counted = ServerAccumulator(), ServerAccumulator(warmup_s)
        self.replicas: dict[str, ServerAccumulator] = {}
        self._warmup_s = warmup_s
        self._on_sample = on_sample
        self._on_death = on_death
        self._engine = MetricsSource()
        self._scraper: Scraper | None = None
        self._lifetime = contextlib.AsyncExitStack()

    def open(
        self, sources: MetricsSources, clock: RunClock, url: str, heard_s: Callable[[], float]
    ) -> None:
        """Take the sample before anything is sent, where that is quick, and go on each second.
        `heard_s` says when something last came from the host at `url`."""
        self._engine = sources.engine
        is_host = _origin(sources.engine.metrics_url or url) == _origin(url)
        engine = Engine.of_process()
        scraper = Scraper(
            sources,
            clock,
            on_sample=lambda sample, replicas: engine.post(partial(self._take, sample, replicas)),
            on_death=lambda: engine.post(self._on_death),
            lives=partial(_lives, url if is_host else None, heard_s),
        )
        self._scraper = scraper
        engine.run(self._lifetime.enter_async_context(scraper.running()))

    @property
    def note(self) -> str | None:
        """Why figures of the engine are missing, begin late, end early or are of several models."""
        asked = self._engine
        models = self._scraper.models if self._scraper is not None else frozenset[str]()
        if len(models) > 1:
            named = ", ".join(one_line(name, 60) for name in sorted(models)[:MOST_NAMED])
            return (
                f"figures of the engine are of all {len(models)} models of {asked.metrics_url}"
                f" ({named}): --model chooses one that it names"
            )
        lack = self._scraper.lack if self._scraper is not None else ""
        if self.counted.begins_uncounted:
            return f"no counters of the engine: {asked.metrics_url} told none at the start"
        if (end_s := self.counted.end_s) is not None:
            said = lack or "tells none any more"
            if self.counted.ends_early:
                return f"no counters of the engine after {end_s:.1f} s: {asked.metrics_url} {said}"
            return f"figures of the engine end at {end_s:.1f} s: {asked.metrics_url} {said}"
        if self.whole.told or not self.whole.count:
            began_late = self._scraper is not None and self._scraper.began_late
            if not (began_late and self.whole.told) or self.counted.count < self.whole.count:
                return None
            return f"figures of the engine lack what it did before {asked.metrics_url} answered"
        if not asked.series:
            return "no figures of the engine: its target names no metrics"
        if lack:
            return f"no figures of the engine: {asked.metrics_url} {lack}"
        example = next(iter(asked.series.values()))
        return (
            f"no figures of the engine: {asked.metrics_url} tells no {example}, nor any other"
            f" of the counters {asked.counters}: a file for --targets can say how it names its own"
        )

    def close(self) -> None:
        """Take the last sample; may be called again."""
        engine = Engine.of_process()
        engine.end(self._lifetime.aclose())
        engine.drain()

    def reset(self) -> None:
        """Count anew; what is sampled goes on."""
        for each in (self.counted, *self.replicas.values()):
            each.restart()

    def _take(self, sample: ServerSample, replicas: Mapping[str, ServerSample]) -> None:
        for totals in (self.whole, self.counted):
            totals.add(sample)
        for name, each in replicas.items():
            self.replicas.setdefault(name, ServerAccumulator(self._warmup_s)).add(each)
        self.recent.append(sample)
        self._on_sample(sample)


def sources_of(
    url: str,
    target: Mapping[str, Any],
    headers: Mapping[str, str] | None = None,
    model: str | None = None,
) -> MetricsSources:
    """Whom to ask about a host at `url`, with the facts of the target that it is, if it is one.

    `headers` are for the host alone. Of several models `model` counts, None: all.
    """
    told = target.get("sources", {})
    engine, cache = (_source(told.get(role, {})) for role in ("engine", "cache"))
    places = told.get("engine", {}).get("replicas", {})
    if not engine.series and not engine.counters:
        name, series = usual_series("engine")
        engine = replace(engine, counters=name, series=series)
    metrics_url = engine.metrics_url or f"{url.rstrip('/')}/metrics"
    is_same = _origin(metrics_url) == _origin(url)
    own = headers if headers and is_same else {}
    engine = replace(engine, metrics_url=metrics_url, headers=own, model=model)
    replicas = {name: replace(engine, **place) for name, place in places.items()}
    return MetricsSources(engine, replicas, cache, GpuMemory.open() if target else None)


def _origin(url: str) -> URL:
    return URL(url).origin()


def _source(told: Mapping[str, Any]) -> MetricsSource:
    names = [each.name for each in fields(MetricsSource)]
    return MetricsSource(**{name: told[name] for name in names if name in told})


class Scraper:
    """`on_sample` gets every sample, with those of the replicas by name; `on_death` is called once
    when the engine refuses for good, and `lives` has found nothing else since its first refusal.

    All are called on the loop.
    """

    def __init__(
        self,
        sources: MetricsSources,
        clock: RunClock,
        on_sample: Callable[[ServerSample, Mapping[str, ServerSample]], None],
        on_death: Callable[[], None],
        lives: Callable[[float], Awaitable[bool]],
    ) -> None:
        self._pages = MetricsScraper(sources)
        self._lives = lives
        self._clock = clock
        self._on_sample = on_sample
        self._on_death = on_death
        self.began_late = False
        """The load had begun `LATE_PAGE_S` before the first sample was there."""

    @property
    def models(self) -> frozenset[str]:
        """Those whose figures are added up."""
        return self._pages.models

    @property
    def lack(self) -> str:
        """Why the last page of metrics is not there, empty where it is."""
        return self._pages.lack

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator["Scraper"]:
        """Take a first sample before anything is sent, then one each second, then a last one.

        The time of the run has begun: it does not wait for a sample that is slow.
        """
        async with self._pages:
            first = asyncio.create_task(self.take())
            await asyncio.wait([first], timeout=FIRST_SAMPLE_S)
            keeper = asyncio.create_task(self._watch(first))
            try:
                yield self
            finally:
                for task in (first, keeper):
                    task.cancel()
                await asyncio.gather(first, keeper, return_exceptions=True)
                await self.take()

    async def take(self) -> ServerSample:
        """One sample now."""
        sample = await self._pages.scrape(self._clock.now_s())
        self._on_sample(sample, self._pages.replicas)
        return sample

    async def _watch(self, first: "asyncio.Task[ServerSample]") -> None:
        asked_s = (await first).at_s
        self.began_late = self._clock.now_s() - asked_s > FIRST_SAMPLE_S + LATE_PAGE_S
        refused_s: list[float] = []
        while len(refused_s) < REFUSALS_UNTIL_DEAD:
            await asyncio.sleep(1.0)
            sample = await self.take()
            refused_s = [*refused_s, sample.at_s] if sample.reachable is False else []
            if len(refused_s) == REFUSALS_UNTIL_DEAD and await self._lives(refused_s[0]):
                refused_s = []
        self._on_death()


class ServiceWatch:
    """Asks one service each second during one run; `on_death` is called once, on the hub, and told
    what became of it.

    A service that takes long to answer is busy, up to `max_silence_s` (0: however long).
    """

    def __init__(self, on_death: Callable[[str], None], max_silence_s: float = 0.0) -> None:
        self._on_death = on_death
        self._max_silence_s = max_silence_s or math.inf
        self._lifetime = contextlib.AsyncExitStack()

    def open(self, url: str, path: str = "/health") -> None:
        """Begin to ask; any answer is one."""
        Engine.of_process().run(self._begin(url, path))

    def close(self) -> None:
        """Ask no more; may be called again."""
        Engine.of_process().end(self._lifetime.aclose())

    async def _begin(self, url: str, path: str) -> None:
        opened = Host.opened(url, {}, ANSWER_TIMEOUT_S)
        host = await self._lifetime.enter_async_context(opened)
        watch = asyncio.create_task(self._watch(host, path))
        self._lifetime.push_async_callback(_end, watch)

    async def _watch(self, host: Host, path: str) -> None:
        refusals, silent_s = 0, 0.0
        while refusals < REFUSALS_UNTIL_DEAD and silent_s < self._max_silence_s:
            await asyncio.sleep(PAUSE_S)
            answer = await _answer(host, path)
            refusals = refusals + 1 if answer == "refusal" else 0
            if answer == "silence":
                silent_s += PAUSE_S + ANSWER_TIMEOUT_S
            elif answer != "unknown":
                silent_s = 0.0
        limit = f"is not answering: nothing for {self._max_silence_s:g} s"
        said = limit if silent_s else "is gone"
        Engine.of_process().post(partial(self._on_death, said))


class FleetWatch:
    """Asks the process above each second which engines of a fleet have died, on the hub.

    `on_death` hears of each that others go on without, `on_fault` once why none serves any more.
    """

    def __init__(
        self,
        supervisor: Supervisor,
        on_death: Callable[[EngineDeath], None],
        on_fault: Callable[[str], None],
    ) -> None:
        self.deaths: list[EngineDeath] = []
        """In the order of time, as they were told last."""
        self._supervisor = supervisor
        self._on_death = on_death
        self._on_fault = on_fault
        self._greenlet: gevent.Greenlet | None = None

    def open(self) -> None:
        """Begin to ask, where there is a fleet."""
        if self._supervisor.has_fleet:
            self._greenlet = gevent.spawn(self._watch)

    def close(self) -> None:
        """Ask once more, and then no more; may be called again."""
        if self._greenlet is not None:
            self._greenlet.kill()
            self._greenlet = None
            self._ask()

    def _watch(self) -> None:
        fault = None
        while fault is None:
            gevent.sleep(PAUSE_S)
            known = {each.engine for each in self.deaths}
            fault = self._ask()
            for death in self.deaths:
                if death.engine not in known and fault is None:
                    self._on_death(death)
        self._on_fault(fault)

    def _ask(self) -> str | None:
        with contextlib.suppress(OSError):  # it is gone, and the engines with it
            self.deaths, fault = self._supervisor.deaths()
            return fault
        return None


async def _lives(url: str | None, heard_s: Callable[[], float], since_s: float) -> bool:
    """Whether a host that refuses its metrics sends replies, or answers who asks for its models;
    not known of an engine behind another address (None)."""
    if url is None or heard_s() > since_s:
        return url is not None
    async with Host.opened(url, {}, ANSWER_TIMEOUT_S) as host:
        return await _answer(host, "/v1/models") != "refusal"


async def _answer(host: Host, path: str) -> str:
    """Whether there is one, or a refusal, or silence; unknown where this process cannot ask."""
    try:
        await host.ask("GET", path)
    except HostError as error:
        if getattr(error.__cause__, "is_own", False):
            return "unknown"
        if isinstance(error.__cause__, ConnectFailed | Truncated):
            return "refusal"
        return "answer" if error.__cause__ else "silence"
    return "answer"


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
