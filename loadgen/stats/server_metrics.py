"""Asks the engine, LMCache and the operating system how they are doing."""

import asyncio
import math
from dataclasses import dataclass
from typing import NamedTuple

import aiohttp

from loadgen.stats.memory import GpuMemory, tree_rss_mb
from loadgen.stats.prometheus import MetricReader, Sample
from loadgen.stats.server_sample import COLUMNS, ServerSample

__all__ = ["COLUMNS", "MetricsSources", "ServerSample", "scrape"]

_TIMEOUT = aiohttp.ClientTimeout(total=2)
_PAGE_LIMIT = 16_000_000  # bytes; vLLM's page has about 50,000


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


async def scrape(
    session: aiohttp.ClientSession, sources: MetricsSources, at_s: float
) -> ServerSample:
    """Ask engine, LMCache and the operating system at once; never raises for what they do.

    Memory is read in the loop's default executor.
    """
    engine, lmcache, memory = await asyncio.gather(
        _page(session, sources.engine_url),
        _page(session, sources.lmcache_url),
        _memory(sources),
    )
    return ServerSample(
        at_s,
        engine.reachable,
        **_figures(_ENGINE_READER.read(engine.text), _ENGINE),
        **_since_zero(_figures(_LMCACHE_READER.read(lmcache.text), _LMCACHE)),
        **memory,
    )


class _Page(NamedTuple):
    reachable: bool | None
    text: bytes = b""


async def _page(session: aiohttp.ClientSession, url: str | None) -> _Page:
    if url is None:
        return _Page(None)
    try:
        async with session.get(
            f"{url.rstrip('/')}/metrics", timeout=_TIMEOUT, raise_for_status=False
        ) as response:
            return _Page(True, await _body(response) if response.status == 200 else b"")
    except TimeoutError:
        return _Page(None)
    except aiohttp.ClientConnectionError:
        return _Page(False)
    except aiohttp.ClientError:
        return _Page(None)


async def _body(response: aiohttp.ClientResponse) -> bytes:
    body = bytearray()
    async for chunk in response.content.iter_any():
        body += chunk
        if len(body) > _PAGE_LIMIT:
            return b""
    return bytes(body)


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
