"""The server's share of a summary, from its own counters between two moments."""

from collections.abc import Iterable, Sequence
from itertools import pairwise

from loadgen.stats.server_sample import ServerSample

Figures = dict[str, float | bool | None]

_COUNTERS = (
    "prompt_tokens",
    "computed_prompt_tokens",
    "cached_prompt_tokens",
    "external_prompt_tokens",
    "generation_tokens",
    "prefix_cache_hits",
    "external_prefix_cache_hits",
    "request_success",
    "num_preemptions",
)
_PROMPT_FIGURES = (
    "computed_prompt_tokens",
    "cached_prompt_tokens",
    "external_prompt_tokens",
    "hit_rate",
    "external_hit_rate",
)
_PEAKS = {
    "peak_running": "running",
    "peak_waiting": "waiting",
    "peak_kv_cache_usage": "kv_cache_usage",
    "peak_engine_rss_mb": "engine_rss_mb",
    "peak_lmcache_rss_mb": "lmcache_rss_mb",
    "peak_lmcache_l1_bytes": "lmcache_l1_memory_usage_bytes",
    "peak_gpu_memory_mb": "gpu_memory_mb",
}


def server_figures(
    first: ServerSample, last: ServerSample, between: Sequence[ServerSample] = ()
) -> Figures:
    """What the server did from `first` (before the first send) to `last` (after the drain).

    `computed_`, `cached_` (the engine's own cache) and `external_prompt_tokens` (a KV connector)
    add up to all prompt tokens; `hit_rate` and `external_hit_rate` are the latter two over all.
    They are of finished prefills; what a preempted request computes again is not in them.

    All is None where the host has no `/metrics`. `counter_reset` is True when a counter went
    down on the way (the engine was restarted): figures made of counters are then None, peaks
    stand.
    """
    samples = (first, *between, last)
    peaks = {name: _peak(samples, field) for name, field in _PEAKS.items()}
    known = first.prompt_tokens is not None and last.prompt_tokens is not None
    reset = any(_goes_down(samples, counter) for counter in _COUNTERS)
    rise = _rises(first, last) if known and not reset else dict.fromkeys(_COUNTERS)
    return {
        **_prompt_figures(rise),
        "generation_tokens": rise["generation_tokens"],
        "num_preemptions": rise["num_preemptions"],
        **peaks,
        "counter_reset": reset if known or reset else None,
    }


def _rises(first: ServerSample, last: ServerSample) -> dict[str, float | None]:
    return {name: _minus(getattr(last, name), getattr(first, name)) for name in _COUNTERS}


def _minus(last: float | None, first: float | None) -> float | None:
    return None if last is None or first is None else last - first


def _goes_down(samples: Iterable[ServerSample], counter: str) -> bool:
    values = [getattr(sample, counter) for sample in samples]
    return any(b < a for a, b in pairwise(value for value in values if value is not None))


def _peak(samples: Iterable[ServerSample], field: str) -> float | None:
    values = [getattr(sample, field) for sample in samples]
    return max((value for value in values if value is not None), default=None)


def _prompt_figures(rise: dict[str, float | None]) -> Figures:
    sources = _by_source(rise)
    if sources is None:
        return dict.fromkeys(_PROMPT_FIGURES)
    computed, cached, external = sources
    total = computed + cached + external
    rates = (cached / total, external / total) if total else (None, None)
    return dict(zip(_PROMPT_FIGURES, (*sources, *rates), strict=True))


def _by_source(rise: dict[str, float | None]) -> tuple[float, float, float] | None:
    """Computed, cached and external prompt tokens.

    A vLLM older than the counters by source still tells the hits of both caches.
    """
    computed, cached = rise["computed_prompt_tokens"], rise["cached_prompt_tokens"]
    external = rise["external_prompt_tokens"]
    if computed is not None and cached is not None and external is not None:
        return computed, cached, external
    prompt, hits = rise["prompt_tokens"], rise["prefix_cache_hits"]
    if prompt is None or hits is None:
        return None
    external_hits = rise["external_prefix_cache_hits"] or 0
    return max(prompt - hits - external_hits, 0), hits, external_hits


NO_FIGURES = server_figures(ServerSample(0.0), ServerSample(0.0))
