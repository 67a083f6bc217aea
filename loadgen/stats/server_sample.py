"""What the engine and the cache behind it said about themselves in one second."""

from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True)
class ServerSample:
    """One second of a server: a row of `server_metrics.csv`.

    `at_s` counts from the run's start. `reachable` is False when the engine refuses or breaks
    the connection, None when it does not answer in time or was not asked. Counters are totals
    since the engine's start, summed over its replicas; `running` to `kv_cache_usage` (0 to 1,
    mean over the replicas) are of this moment. None means unknown and is an empty cell.
    """

    at_s: float
    reachable: bool | None = None
    prompt_tokens: float | None = None
    computed_prompt_tokens: float | None = None
    cached_prompt_tokens: float | None = None
    external_prompt_tokens: float | None = None
    generation_tokens: float | None = None
    prefix_cache_queries: float | None = None
    prefix_cache_hits: float | None = None
    external_prefix_cache_queries: float | None = None
    external_prefix_cache_hits: float | None = None
    request_success: float | None = None
    num_preemptions: float | None = None
    running: float | None = None
    waiting: float | None = None
    kv_cache_usage: float | None = None
    lmcache_lookup_requested_tokens: float | None = None
    lmcache_lookup_hit_l1_tokens: float | None = None
    lmcache_lookup_hit_l2_tokens: float | None = None
    lmcache_l1_evicted_chunks: float | None = None
    lmcache_l1_memory_usage_bytes: float | None = None
    engine_rss_mb: float | None = None
    lmcache_rss_mb: float | None = None
    gpu_memory_mb: float | None = None


CACHE_PREFIX = "lmcache_"
"""Before the figures of whatever service is the cache, in the names of the columns."""

ENGINE_FIGURES: tuple[str, ...] = tuple(
    field.name
    for field in fields(ServerSample)
    if not field.name.startswith(CACHE_PREFIX)
    and field.name not in ("at_s", "reachable", "engine_rss_mb", "gpu_memory_mb")
)
CACHE_FIGURES: tuple[str, ...] = tuple(
    field.name.removeprefix(CACHE_PREFIX)
    for field in fields(ServerSample)
    if field.name.startswith(CACHE_PREFIX) and field.name != "lmcache_rss_mb"
)
"""What a map of counters can name."""

COLUMNS: tuple[str, ...] = tuple(field.name for field in fields(ServerSample))
