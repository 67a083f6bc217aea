"""Asks the engine, the cache behind it and the operating system how they are doing."""

import asyncio
import math
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field, replace
from email.utils import parsedate_to_datetime
from typing import Any, NamedTuple, Self

from loadgen.client.failures import ConnectFailed, StreamFailure
from loadgen.client.host import ControlClient, TooLong
from loadgen.stats.counter_series import (
    CREATED,
    MODEL_LABELS,
    TOTAL,
    CounterTotals,
    created_name,
)
from loadgen.stats.memory import GpuMemory, tree_use
from loadgen.stats.prometheus import MetricReader, MetricSeries, Sample
from loadgen.stats.server_counters import (
    CACHE_FIGURES,
    CACHE_PREFIX,
    ENGINE_COUNTERS,
    ENGINE_FIGURES,
    GAUGES,
    ServerSample,
    sum_of_replicas,
)

_TIMEOUT_S = 2.0
ONLY = ""
"""The name of an engine that has no router before it."""


@dataclass(frozen=True, slots=True)
class MetricsSource:
    """A service: where its metrics are, which series there is which figure, and its process, where
    that is on this machine. `counters` is the name of the map of `series`; of several models on a
    page only `model` counts, None: all. `headers` are secrets."""

    metrics_url: str | None = None
    series: Mapping[str, str] = field(default_factory=dict)
    counters: str = ""
    pid: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    model: str | None = None


@dataclass(frozen=True, slots=True)
class MetricsSources:
    """Whom to ask: the engine, a cache behind it, and the GPUs of this machine.

    Where a router stands before several engines, these are `replicas`, by their names, and `engine`
    is the first of them.
    """

    engine: MetricsSource = MetricsSource()
    replicas: Mapping[str, MetricsSource] = field(default_factory=dict)
    cache: MetricsSource = MetricsSource()
    gpu: GpuMemory | None = None

    @property
    def engine_pids(self) -> list[int]:
        """The processes of the engines that are on this machine."""
        engines = self.replicas.values() or (self.engine,)
        return [each.pid for each in engines if each.pid is not None]


class MetricsScraper:
    """Keeps the connections to the sources."""

    def __init__(self, sources: MetricsSources) -> None:
        self._sources = sources
        replicas = sources.replicas or {ONLY: sources.engine}
        keeps = bool(sources.replicas)
        self._engines = {
            name: _Service(each, ENGINE_FIGURES, keeps) for name, each in replicas.items()
        }
        self._cache = _Service(sources.cache, CACHE_FIGURES)
        self.replicas: dict[str, ServerSample] = {}
        self.lack = ""
        self._cpu_s: dict[int, float] = {}
        self._lifetime = AsyncExitStack()

    async def __aenter__(self) -> Self:
        for service in (*self._engines.values(), self._cache):
            if service.client is not None:
                await self._lifetime.enter_async_context(service.client)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._lifetime.aclose()

    @property
    def models(self) -> frozenset[str]:
        """Those whose figures are added up."""
        return frozenset().union(*(each.models for each in self._engines.values()))

    async def scrape(self, at_s: float) -> ServerSample:
        """Ask engines, cache and the operating system at once; never raises for what they do.

        Processes are read in the loop's default executor. Afterwards `replicas` has a sample of
        each of several engines, and `lack` says why one told no page, if so.
        """
        engines = asyncio.gather(*(_page(each.client) for each in self._engines.values()))
        pages, cache, processes = await asyncio.gather(
            engines, _page(self._cache.client), self._processes()
        )
        self.lack = next((page.lack for page in pages if page.lack), "")
        each = {
            name: ServerSample(
                at_s,
                page.reachable,
                **service.figures(page.text, page.at_unix_s),
                counter_resets=service.resets,
            )
            for (name, service), page in zip(self._engines.items(), pages, strict=True)
        }
        if self._sources.replicas:
            self.replicas = each
        kept = _since_zero(self._cache.figures(cache.text))
        of_cache = {f"{CACHE_PREFIX}{name}": value for name, value in kept.items()}
        rest: dict[str, Any] = {**of_cache, **processes}
        answers = zip(self._engines.values(), pages, strict=True)
        if not all(service.has_told or page.reachable is False for service, page in answers):
            rest = dict.fromkeys(ENGINE_COUNTERS) | rest
        return replace(sum_of_replicas(list(each.values())), **rest)

    async def _processes(self) -> dict[str, float | None]:
        sources = self._sources
        if not sources.engine_pids and sources.cache.pid is None and sources.gpu is None:
            return {}
        return await asyncio.to_thread(self._read_processes)

    def _read_processes(self) -> dict[str, float | None]:
        """An engine that has died keeps the CPU time that it had."""
        sources, gpu = self._sources, self._sources.gpu
        found = {pid: tree_use(pid) for pid in sources.engine_pids}
        living = {pid: use for pid, use in found.items() if use is not None}
        for pid, use in living.items():
            self._cpu_s[pid] = max(use.cpu_s, self._cpu_s.get(pid, 0.0))
        cache = None if sources.cache.pid is None else tree_use(sources.cache.pid)
        return {
            "engine_rss_mb": math.fsum(use.rss_mb for use in living.values()) if living else None,
            "engine_cpu_s": math.fsum(self._cpu_s.values()) if self._cpu_s else None,
            "lmcache_rss_mb": None if cache is None else cache.rss_mb,
            "gpu_memory_mb": None if gpu is None else gpu.used_mb(),
        }


class _Service:
    """Asks one service for its page of metrics, and finds the figures there.

    One that `keeps` its counters tells the last ones where a page tells none: in a sum of several
    they must not be missing.
    """

    def __init__(self, source: MetricsSource, figures: Sequence[str], keeps: bool = False) -> None:
        url = source.metrics_url
        self._keeps, self._last = keeps, dict[str, float]()
        self.client = None if url is None else ControlClient(url, source.headers, _TIMEOUT_S)
        self.models: frozenset[str] = frozenset()
        self._model, self._tells_model = source.model, False
        self._series = {
            name: MetricSeries.parse(text)
            for name, text in source.series.items()
            if name in figures
        }
        names = {series.name for series in self._series.values()}
        # A router may tell the counters of its engines without the ending.
        self._endless = {name.removesuffix(TOTAL): name for name in names if name.endswith(TOTAL)}
        self._reader = MetricReader(names | {*map(created_name, names), *self._endless})
        self._totals = CounterTotals()

    @property
    def has_told(self) -> bool:
        """False for one of several that told no counter yet: its first ones would look like work of
        that moment in the sum."""
        return not self._keeps or bool(self._last)

    def figures(self, page: bytes, at_unix_s: float | None = None) -> dict[str, float | None]:
        """Gauges as they are, counters by `CounterTotals`; None is not told."""
        samples = self._of_model(self._named(page)) if self._series else []
        self.models |= {model for each in samples for model in _models(each)[:1] if model}
        told = {name: series.among(samples) for name, series in self._series.items()}
        created = (sample for sample in samples if sample.name.endswith(CREATED))
        counters = {name: found for name, found in told.items() if name not in GAUGES}
        totals = self._totals.take(counters, created, at_unix_s)
        if self._keeps:
            self._last |= totals
            totals = self._last
        gauges = {name: _gauge(name, found) for name, found in told.items() if name in GAUGES}
        return gauges | {name: _whole(totals.get(name)) for name in counters}

    def _named(self, page: bytes) -> list[Sample]:
        """What is wanted of a page; a name without `_total` stands for one that is not there."""
        samples = self._reader.read(page)
        names = {sample.name for sample in samples}
        given = {short: name for short, name in self._endless.items() if name not in names}
        return [each._replace(name=given.get(each.name, each.name)) for each in samples]

    def _of_model(self, samples: list[Sample]) -> list[Sample]:
        """Those of the model, once the page has told it from others: an adapter's are its base's,
        by whose name they go."""
        model = self._model
        self._tells_model |= any(model in _models(each) for each in samples)
        if model is None or not self._tells_model:
            return samples
        return [each for each in samples if model in (_models(each) or [model])]

    @property
    def resets(self) -> int | None:
        """On how many pages a counter had started again, None for none."""
        return self._totals.resets or None


class _Page(NamedTuple):
    """`lack` says why there is none, `at_unix_s` when it was, by the clock of its host."""

    reachable: bool | None
    text: bytes = b""
    lack: str = ""
    at_unix_s: float | None = None


async def _page(client: ControlClient | None) -> _Page:
    if client is None:
        return _Page(None)
    try:
        answer = await client.ask("GET", "")
    except ConnectFailed as failure:
        return _Page(None if failure.is_own else False, lack="cannot be reached")
    except TooLong:
        return _Page(True, lack="answers without end")
    except TimeoutError:
        return _Page(None, lack=f"does not answer within {_TIMEOUT_S:g} s")
    except StreamFailure:
        return _Page(None, lack="breaks off, or does not speak HTTP")
    if answer.status != 200:
        return _Page(True, lack=f"answers HTTP {answer.status}")
    return _Page(True, answer.body, at_unix_s=_unix_s(answer.date))


def _unix_s(date: str) -> float | None:
    """Of a header."""
    with suppress(ValueError, OverflowError):
        return parsedate_to_datetime(date).timestamp()
    return None


def _models(sample: Sample) -> list[str]:
    """What its labels say of it."""
    return [sample.labels[name] for name in MODEL_LABELS if name in sample.labels]


def _gauge(name: str, samples: Sequence[Sample]) -> float | None:
    known = [sample.value for sample in samples if sample.is_known]
    if not known:
        return None
    total = math.fsum(known)
    return total / len(known) if name == "kv_cache_usage" else _whole(total)


def _whole(value: float | None) -> float | None:
    is_exact = abs(value or 0.0) < 2**53  # and no number too large for JSON
    return int(value) if value is not None and is_exact and value.is_integer() else value


def _since_zero(cache: dict[str, float | None]) -> dict[str, float | None]:
    """LMCache shows a counter only once it has counted; its memory gauge is there from the start.

    So where the gauge is known, a missing counter is 0.
    """
    if cache.get("l1_memory_usage_bytes") is None:
        return cache
    return {name: value or 0 for name, value in cache.items()}
