"""The server's share of a summary, from its own counters between two moments."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True)
class ServerSample:
    """One second of a server: a row of `server_metrics.csv`.

    `at_s` counts from the run's start. `reachable` is False when the engine, of several each,
    refuses or breaks the connection, None when it does not answer in time or was not asked.
    Counters are totals since the engine's start, summed over its replicas at the first sample, and
    from then on what each of them added; `running` to `kv_cache_usage` (0 to 1, mean over the
    replicas) are of this moment. None means unknown and is an empty cell.
    """

    at_s: float
    """When; in an open loop the first rows lie before 0."""
    reachable: bool | None = None
    """False: the connection was refused or broke, of several engines by all; empty: no answer in
    time."""
    prompt_tokens: float | None = None
    """Prompt tokens."""
    computed_prompt_tokens: float | None = None
    """Those computed."""
    cached_prompt_tokens: float | None = None
    """Those from the engine's prefix cache."""
    external_prompt_tokens: float | None = None
    """Those from a KV connector."""
    host_prompt_tokens: float | None = None
    """Of these from memory."""
    disk_prompt_tokens: float | None = None
    """Of these from files."""
    other_prompt_tokens: float | None = None
    """Of these from elsewhere: LMCache, or a store of ours."""
    offload_stored_bytes: float | None = None
    """KV copied out."""
    offload_loaded_bytes: float | None = None
    """KV copied back."""
    offload_load_s: float | None = None
    """Seconds of copies back."""
    offload_loads: float | None = None
    """Copies back."""
    offload_wait_s: float | None = None
    """Seconds that requests waited for files or stores."""
    offload_waits: float | None = None
    """Requests that did."""
    offload_failures: float | None = None
    """Copies out without room."""
    tier_written_bytes: float | None = None
    """KV from memory into files or stores."""
    tier_read_bytes: float | None = None
    """And back."""
    tier_write_failures: float | None = None
    """Failed writes."""
    tier_read_failures: float | None = None
    """Failed reads."""
    kv_blocks_evicted: float | None = None
    """Blocks evicted from the engine's cache."""
    kv_block_idle_s: float | None = None
    """Seconds since their last use."""
    kv_block_reuses: float | None = None
    """Their repeated uses."""
    kv_block_reuse_gap_s: float | None = None
    """Seconds between these."""
    generation_tokens: float | None = None
    """Output tokens."""
    prefix_cache_queries: float | None = None
    """Tokens looked up in the prefix cache."""
    prefix_cache_hits: float | None = None
    """Tokens found there."""
    external_prefix_cache_queries: float | None = None
    """Tokens looked up through the connector."""
    external_prefix_cache_hits: float | None = None
    """Tokens found there."""
    request_success: float | None = None
    """Requests the engine finished."""
    num_preemptions: float | None = None
    """Preemptions."""
    running: float | None = None
    """Being worked on at this moment."""
    waiting: float | None = None
    """In the engine's queue at this moment."""
    kv_cache_usage: float | None = None
    """Share of the KV cache in use, mean over the replicas."""
    lmcache_lookup_requested_tokens: float | None = None
    """Tokens asked of LMCache."""
    lmcache_lookup_hit_l1_tokens: float | None = None
    """Found in its memory."""
    lmcache_lookup_hit_l2_tokens: float | None = None
    """Found in its second tier."""
    lmcache_l1_written_chunks: float | None = None
    """Chunks written to its memory."""
    lmcache_l1_read_chunks: float | None = None
    """Chunks read from it."""
    lmcache_l1_evicted_chunks: float | None = None
    """Chunks thrown out of it."""
    lmcache_l1_memory_usage_bytes: float | None = None
    """Its memory in use."""
    engine_rss_mb: float | None = None
    """Resident memory of the engine's processes."""
    engine_cpu_s: float | None = None
    """Counter: CPU seconds of the engine's processes, user and system."""
    lmcache_rss_mb: float | None = None
    """Resident memory of LMCache's processes."""
    gpu_memory_mb: float | None = None
    """Memory in use on all NVIDIA GPUs of this machine."""
    counter_resets: float | None = None
    """Samples so far in which a counter of an engine had started again; empty for none."""


CACHE_PREFIX = "lmcache_"
"""Before the figures of whatever service is the cache, in the names of the columns."""
MOST_CUT_S = 10.0
"""Counters that end longer than this before the last sample are not those of the run."""

OF_MACHINE = ("engine_rss_mb", "engine_cpu_s", "lmcache_rss_mb", "gpu_memory_mb")
"""What no service tells of itself."""
ENGINE_FIGURES: tuple[str, ...] = tuple(
    field.name
    for field in fields(ServerSample)
    if not field.name.startswith(CACHE_PREFIX)
    and field.name not in ("at_s", "reachable", *OF_MACHINE, "counter_resets")
)
GAUGES = ("running", "waiting", "kv_cache_usage", "l1_memory_usage_bytes")
"""Those that are of a moment; all others are counters."""
ENGINE_COUNTERS = tuple(name for name in ENGINE_FIGURES if name not in GAUGES)
CACHE_FIGURES: tuple[str, ...] = tuple(
    field.name.removeprefix(CACHE_PREFIX)
    for field in fields(ServerSample)
    if field.name.startswith(CACHE_PREFIX) and field.name not in OF_MACHINE
)
"""What a map of counters can name."""

COLUMNS: tuple[str, ...] = tuple(field.name for field in fields(ServerSample))


Figures = dict[str, float | bool | None]

_STORED_BYTES, _LOADED_BYTES = "offload_stored_bytes", "offload_loaded_bytes"
_FAILURES = ("offload_failures", "tier_write_failures", "tier_read_failures")
OFFLOAD = (
    *("host_prompt_tokens", "disk_prompt_tokens", "other_prompt_tokens"),
    *(_STORED_BYTES, _LOADED_BYTES, "tier_written_bytes", "tier_read_bytes", *_FAILURES),
)
"""Of vLLM's own offload, in the samples and in the summary."""
LMCACHE = (
    *("lmcache_lookup_hit_l1_tokens", "lmcache_lookup_hit_l2_tokens"),
    *("lmcache_l1_written_chunks", "lmcache_l1_read_chunks", "lmcache_l1_evicted_chunks"),
)
"""Of LMCache, in the samples and in the summary."""
OFFLOAD_TIMES = ("offload_load_s", "offload_loads", "offload_wait_s", "offload_waits")
_LATE = (*OFFLOAD, *OFFLOAD_TIMES)
"""vLLM shows most of these only once there is something to count."""
PROMPT_SOURCES = ("computed_prompt_tokens", "cached_prompt_tokens", "external_prompt_tokens")
_COUNTERS = (
    "prompt_tokens",
    *PROMPT_SOURCES,
    *_LATE,
    *("kv_blocks_evicted", "kv_block_idle_s", "kv_block_reuses", "kv_block_reuse_gap_s"),
    "generation_tokens",
    "prefix_cache_hits",
    "external_prefix_cache_hits",
    "request_success",
    "num_preemptions",
    *LMCACHE,
)
PROMPT_HITS, EXTERNAL_HITS = ("prompt_tokens", "prefix_cache_hits"), "external_prefix_cache_hits"
"""What tells the same where an engine has no counters by source."""
PROMPT_FIGURES = (*PROMPT_SOURCES, "hit_rate", "external_hit_rate")
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

    Where the last samples told no counters they end at the one before, and are None where that is
    more than `MOST_CUT_S` ago. All is None where the host has no `/metrics`. `counter_reset` is
    True when a counter went down on the way (the engine was restarted): figures made of counters
    are then None, peaks stand.
    """
    totals = ServerAccumulator()
    for sample in (first, *between, last):
        totals.add(sample)
    return totals.figures()


def sum_of_replicas(samples: Sequence[ServerSample]) -> ServerSample:
    """One sample of several engines, taken at one moment: that of one engine is itself.

    It is reachable where any is, and refuses where all do; figures that some do not tell are those
    of the others.
    """
    if len(samples) == 1:
        return samples[0]
    answers = [sample.reachable for sample in samples]
    reachable = True if True in answers else None if None in answers else False
    summed: dict[str, float | None] = {}
    for name in (*ENGINE_FIGURES, "counter_resets"):
        known = [value for each in samples if (value := getattr(each, name)) is not None]
        total = sum(known) if known else None
        mean = name == "kv_cache_usage" and total is not None
        summed[name] = total / len(known) if mean and total is not None else total
    return ServerSample(samples[0].at_s, reachable, **summed)


class ServerAccumulator:
    """Samples of a host in the order of time, in a space that does not grow with them.

    What was sampled until `warmup_s` counts only as the state before the rest. `told` says whether
    the engine told any figure of its own.
    """

    def __init__(self, warmup_s: float = 0.0) -> None:
        self._warmup_s = warmup_s
        self._clear()

    def _clear(self) -> None:
        self.count = 0
        self.told = False
        self._first = self._last = self._counted = ServerSample(0.0)
        self._counts = 0
        self._known: dict[str, float] = {}
        self._peaks: dict[str, float] = {}
        self._reset = False
        self._resets: float | None = None

    def restart(self) -> None:
        """What was sampled so far counts only as the state before the rest."""
        # Not from a scrape that told nothing, as at the end of the warm-up.
        count, last = self.count, self._counted if self._counts else self._last
        self._clear()
        if count:
            self.add(last)

    def add(self, sample: ServerSample) -> None:
        """Take in the next sample."""
        # A scrape that told nothing is no state to count from, where an earlier one told something.
        tells = sample.prompt_tokens is not None or self._first.prompt_tokens is None
        if self._warmup_s and sample.at_s <= self._warmup_s and tells:
            self._clear()
        if not self.count:
            self._first = sample
        self._last = sample
        self.count += 1
        if sample.prompt_tokens is not None:
            self._counted = sample
            self._counts += 1
        self.told |= any(getattr(sample, name) is not None for name in ENGINE_FIGURES)
        resets = sample.counter_resets or 0
        self._reset |= self._resets is not None and resets > self._resets
        self._resets = resets
        for counter in _COUNTERS:
            value = getattr(sample, counter)
            if value is not None:
                is_engines = counter not in LMCACHE
                self._reset |= is_engines and value < self._known.get(counter, value)
                self._known[counter] = value
        for name, field in _PEAKS.items():
            value = getattr(sample, field)
            if value is not None:
                self._peaks[name] = max(self._peaks.get(name, value), value)

    @property
    def begins_uncounted(self) -> bool:
        """Whether the first sample told no counters and later ones did: then all are unknown."""
        return self._first.prompt_tokens is None and self._counts > 0

    @property
    def end_s(self) -> float | None:
        """When the counters end, where the last samples told none; else None."""
        is_cut = self._counts > 0 and self._last.prompt_tokens is None
        return self._counted.at_s if is_cut else None

    @property
    def ends_early(self) -> bool:
        """Whether the counters, if there are any, end too early: then all are unknown."""
        return self._last.at_s - self._counted.at_s > MOST_CUT_S

    def figures(self) -> Figures:
        """As `server_figures` of all samples."""
        first, last, reset = self._first, self._counted, self._reset
        known = first.prompt_tokens is not None and self._counts > 1 and not self.ends_early
        rise = _rises(first, last) if known and not reset else dict.fromkeys(_COUNTERS)
        return {
            **_prompt_figures(rise),
            **{name: rise[name] for name in (*OFFLOAD, *LMCACHE)},
            "offload_load_mean_s": _over(rise["offload_load_s"], rise["offload_loads"]),
            "offload_wait_mean_s": _over(rise["offload_wait_s"], rise["offload_waits"]),
            "kv_blocks_evicted": rise["kv_blocks_evicted"],
            "kv_block_idle_mean_s": _over(rise["kv_block_idle_s"], rise["kv_blocks_evicted"]),
            "kv_block_reuse_gap_mean_s": _over(
                rise["kv_block_reuse_gap_s"], rise["kv_block_reuses"]
            ),
            "generation_tokens": rise["generation_tokens"],
            "num_preemptions": rise["num_preemptions"],
            **{name: self._peaks.get(name) for name in _PEAKS},
            "server_cpu_ms_per_token": _cpu_ms_per_token(first, last, rise),
            "counter_reset": reset if known or reset else None,
        }


def _rises(first: ServerSample, last: ServerSample) -> dict[str, float | None]:
    rises = {name: _minus(getattr(last, name), getattr(first, name)) for name in _COUNTERS}
    started = {name: getattr(last, name) for name in _LATE if getattr(first, name) is None}
    rises |= started
    if any(rises[name] is not None for name in (_STORED_BYTES, _LOADED_BYTES)):
        # There is an offload, and what it has not shown by then did not happen.
        rises |= {name: rises[name] or 0.0 for name in (_STORED_BYTES, _LOADED_BYTES, *_FAILURES)}
    if rises["other_prompt_tokens"]:  # its tiers do not tell memory and files apart
        rises |= {
            name: rises[name] or None for name in ("host_prompt_tokens", "disk_prompt_tokens")
        }
    return rises


def _minus(last: float | None, first: float | None) -> float | None:
    return None if last is None or first is None else last - first


def _prompt_figures(rise: dict[str, float | None]) -> Figures:
    sources = prompt_sources(rise)
    if sources is None:
        return dict.fromkeys(PROMPT_FIGURES)
    computed, cached, external = sources
    total = computed + cached + external
    rates = (cached / total, external / total) if total else (None, None)
    return dict(zip(PROMPT_FIGURES, (*sources, *rates), strict=True))


def _over(total: float | None, number: float | None) -> float | None:
    return total / number if total is not None and number else None


def _cpu_ms_per_token(
    first: ServerSample, last: ServerSample, rise: Mapping[str, float | None]
) -> float | None:
    """Tokens from a cache cost next to nothing, and are no part of it."""
    cpu_s = _minus(last.engine_cpu_s, first.engine_cpu_s)
    sources, output = prompt_sources(rise), rise["generation_tokens"]
    if cpu_s is None or sources is None or output is None or sources[0] + output <= 0:
        return None
    return 1000 * cpu_s / (sources[0] + output)


def prompt_sources(rise: Mapping[str, float | None]) -> tuple[float, float, float] | None:
    """Computed, cached and external prompt tokens, by what counters rose by; None where they do not
    tell.

    A vLLM older than the counters by source still tells the hits of both caches.
    """
    computed, cached, external = (rise.get(name) for name in PROMPT_SOURCES)
    if computed is not None and cached is not None and external is not None:
        return computed, cached, external
    prompt, hits = (rise.get(name) for name in PROMPT_HITS)
    if prompt is None or hits is None:
        return None
    external_hits = rise.get(EXTERNAL_HITS) or 0
    return max(prompt - hits - external_hits, 0), hits, external_hits


NO_FIGURES = server_figures(ServerSample(0.0), ServerSample(0.0))

FIGURES: Mapping[str, str] = {
    **dict.fromkeys(PROMPT_SOURCES, ""),
    "hit_rate": "cached over all three, 0 to 1",
    "external_hit_rate": "external over all three",
    **dict.fromkeys((*OFFLOAD, *LMCACHE), ""),
    "other_prompt_tokens": "as `host_` and `disk_prompt_tokens` also of aborted requests",
    "offload_load_mean_s": "mean seconds of a copy back",
    "offload_wait_mean_s": "mean wait for files or stores",
    "kv_blocks_evicted": "",
    "kv_block_idle_mean_s": "mean time since the last use of those evicted",
    "kv_block_reuse_gap_mean_s": "and between uses",
    **dict.fromkeys(("generation_tokens", "num_preemptions"), ""),
    "peak_running": "most requests at work",
    "peak_waiting": "most requests in the queue",
    "peak_kv_cache_usage": "highest share of the KV cache in use, 0 to 1",
    "peak_engine_rss_mb": "highest memory of the engine, where kvswarm started it",
    "peak_lmcache_rss_mb": "of LMCache, likewise",
    "peak_lmcache_l1_bytes": "most bytes in LMCache's memory tier",
    "peak_gpu_memory_mb": "of all NVIDIA GPUs of this machine, likewise",
    "server_cpu_ms_per_token": "CPU milliseconds, user and system, of all processes of the engines"
    " between the first and the last sample, over prompt tokens computed and output tokens; where"
    " kvswarm started them",
    "counter_reset": "true where a counter went down (a restart): figures made of counters are then"
    " null",
}
"""What the fields of `server` in a summary are; empty for what a column of the samples rose by."""
