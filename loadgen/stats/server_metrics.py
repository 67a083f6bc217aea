"""Asks the engine, LMCache and the operating system how they are doing."""

import asyncio
import math
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import NamedTuple, Self

from loadgen.client.failures import ConnectFailed, StreamFailure
from loadgen.client.question import Questioner, TooLong
from loadgen.stats.memory import GpuMemory, tree_rss_mb
from loadgen.stats.prometheus import MetricReader, Sample
from loadgen.stats.server_sample import COLUMNS, ServerSample

__all__ = ["COLUMNS", "MetricsScraper", "MetricsSources", "ServerSample"]

_TIMEOUT_S = 2.0


class _Metric(NamedTuple):
    """Where a field comes from: a name on the page and, where it matters, a `source` label."""

    name: str
    source: str | None = None


_ENGINE = {
    "prompt_tokens": _Metric("vllm:prompt_tokens_total"),
    "computed_prompt_tokens": _Metric("vllm:prompt_tokens_by_source_total", "local_compute"),
    "cached_prompt_tokens": _Metric("vllm:prompt_tokens_by_source_total", "local_cache_hit"),
    "external_prompt_tokens": _Metric("vllm:prompt_tokens_by_source_total", "external_kv_transfer"),
    "generation_tokens": _Metric("vllm:generation_tokens_total"),
    "prefix_cache_queries": _Metric("vllm:prefix_cache_queries_total"),
    "prefix_cache_hits": _Metric("vllm:prefix_cache_hits_total"),
    "external_prefix_cache_queries": _Metric("vllm:external_prefix_cache_queries_total"),
    "external_prefix_cache_hits": _Metric("vllm:external_prefix_cache_hits_total"),
    "request_success": _Metric("vllm:request_success_total"),
    "num_preemptions": _Metric("vllm:num_preemptions_total"),
    "running": _Metric("vllm:num_requests_running"),
    "waiting": _Metric("vllm:num_requests_waiting"),
    "kv_cache_usage": _Metric("vllm:kv_cache_usage_perc"),
}
_LMCACHE = {
    "lmcache_lookup_requested_tokens": _Metric("lmcache_mp_lookup_requested_tokens_total"),
    "lmcache_lookup_hit_l1_tokens": _Metric("lmcache_mp_lookup_hit_l1_tokens_total"),
    "lmcache_lookup_hit_l2_tokens": _Metric("lmcache_mp_lookup_hit_l2_tokens_total"),
    "lmcache_l1_evicted_chunks": _Metric("lmcache_mp_l1_evicted_chunks_total"),
    "lmcache_l1_memory_usage_bytes": _Metric("lmcache_mp_l1_memory_usage_bytes"),
}
_ENGINE_READER = MetricReader({metric.name for metric in _ENGINE.values()})
_LMCACHE_READER = MetricReader({metric.name for metric in _LMCACHE.values()})


@dataclass(frozen=True, slots=True)
class MetricsSources:
    """Where to look: base URLs (without `/metrics`) and, on this machine, processes and GPUs."""

    engine_url: str | None = None
    lmcache_url: str | None = None
    engine_pid: int | None = None
    lmcache_pid: int | None = None
    gpu: GpuMemory | None = None


class MetricsScraper:
    """Keeps the connections to the sources."""

    def __init__(self, sources: MetricsSources) -> None:
        self._sources = sources
        self._engine = _questioner(sources.engine_url)
        self._lmcache = _questioner(sources.lmcache_url)
        self._lifetime = AsyncExitStack()

    async def __aenter__(self) -> Self:
        for questioner in filter(None, (self._engine, self._lmcache)):
            await self._lifetime.enter_async_context(questioner)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._lifetime.aclose()

    async def scrape(self, at_s: float) -> ServerSample:
        """Ask engine, LMCache and the operating system at once; never raises for what they do.

        Memory is read in the loop's default executor.
        """
        engine, lmcache, memory = await asyncio.gather(
            _page(self._engine), _page(self._lmcache), _memory(self._sources)
        )
        return ServerSample(
            at_s,
            engine.reachable,
            **_figures(_ENGINE_READER.read(engine.text), _ENGINE),
            **_since_zero(_figures(_LMCACHE_READER.read(lmcache.text), _LMCACHE)),
            **memory,
        )


def _questioner(url: str | None) -> Questioner | None:
    return None if url is None else Questioner(url.rstrip("/"), {}, _TIMEOUT_S)


class _Page(NamedTuple):
    reachable: bool | None
    text: bytes = b""


async def _page(questioner: Questioner | None) -> _Page:
    if questioner is None:
        return _Page(None)
    try:
        answer = await questioner.ask("GET", "/metrics")
    except ConnectFailed:
        return _Page(False)
    except (StreamFailure, TimeoutError):
        return _Page(None)
    except TooLong:
        return _Page(True)
    return _Page(True, answer.body if answer.status == 200 else b"")


def _figures(samples: list[Sample], wanted: dict[str, _Metric]) -> dict[str, float | None]:
    return {field: _figure(samples, metric) for field, metric in wanted.items()}


def _figure(samples: list[Sample], metric: _Metric) -> float | None:
    values = [
        sample.value
        for sample in samples
        if sample.name == metric.name
        and math.isfinite(sample.value)
        and metric.source in (None, sample.labels.get("source"))
    ]
    if not values:
        return None
    total = math.fsum(values)
    if metric is _ENGINE["kv_cache_usage"]:
        return total / len(values)
    return int(total) if total.is_integer() else total


def _since_zero(lmcache: dict[str, float | None]) -> dict[str, float | None]:
    """LMCache shows a counter only once it has counted; its memory gauge is there from the start.

    So where the gauge is known, a missing counter is 0.
    """
    if lmcache["lmcache_l1_memory_usage_bytes"] is None:
        return lmcache
    return {name: value or 0 for name, value in lmcache.items()}


async def _memory(sources: MetricsSources) -> dict[str, float | None]:
    if sources.engine_pid is None and sources.lmcache_pid is None and sources.gpu is None:
        return {}
    return await asyncio.to_thread(_read_memory, sources)


def _read_memory(sources: MetricsSources) -> dict[str, float | None]:
    engine_pid, lmcache_pid, gpu = sources.engine_pid, sources.lmcache_pid, sources.gpu
    return {
        "engine_rss_mb": tree_rss_mb(engine_pid) if engine_pid is not None else None,
        "lmcache_rss_mb": tree_rss_mb(lmcache_pid) if lmcache_pid is not None else None,
        "gpu_memory_mb": gpu.used_mb() if gpu is not None else None,
    }
