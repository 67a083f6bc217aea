"""The smallest cache, in which order, that keeps an objective: by simulation of every candidate."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from pathlib import Path

import numpy as np

from loadgen.compare.gate import Limit
from loadgen.errors import UsageError
from loadgen.locality.break_even import Computing, Link
from loadgen.locality.curve import Knee, predict
from loadgen.locality.lru_stack import LruStack
from loadgen.locality.trace import BlockNames, Chain, Trace
from loadgen.locality.trace_sources import recorded_run
from loadgen.runs.columns import Floats
from loadgen.saturate.objective import slo_limit
from loadgen.twin.advice import ORDERS, Advice, Reuse, SizeTried, TierAdvice
from loadgen.twin.engine import EngineShape
from loadgen.twin.highest_rate import UNITS, HighestRate, Judge, find_rate
from loadgen.twin.load import recorded_load
from loadgen.twin.model import TwinModel
from loadgen.twin.planned import RETRIEVED, PlannedLoad
from loadgen.twin.predict import RATE, TwinPrediction, predict_load
from loadgen.twin.routing import ONE_ENGINE, Fleet
from loadgen.twin.serve import OfferedLoad, ServedRequest, cached_most
from loadgen.twin.shape_of import MOST_BLOCKS, CalibratedEngine
from loadgen.twin.tier import TierShape
from loadgen.workload.workload import Workload

SIZES = 6
LIMITED = ("ttft_ms", "e2e_ms")
MOST_SEEN = 2000
"""Requests by which sizes are chosen and reuse is told."""
NEARLY_ALL = 0.95
TIER_BANDWIDTHS = (4.0, 1.0, 0.25)
"""Of tiers that are tried, over the break-even one."""
TIER_LATENCY_S = 1e-4
FIGURES = {
    "ttft_ms.mean": "ttft_mean_ms",
    "ttft_ms.p50": "ttft_p50_ms",
    "ttft_ms.p95": "ttft_p95_ms",
    "e2e_ms.mean": "e2e_mean_ms",
}
"""What a twin knows the errors of, by the statistic that is limited."""


@dataclass(frozen=True, slots=True)
class AdviceLoad:
    """What advice is about: a load, the engine it is served on, and the command that sent it or
    would. `counted` names the requests that count, None for all; `remarks` are on the run. Raises
    UsageError for an engine of which no cache could be advised."""

    load: OfferedLoad
    engine: CalibratedEngine
    command: Sequence[str]
    seed: int = 0
    counted: frozenset[str] | None = None
    remarks: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.engine.shape.prefix_caching:
            raise UsageError(
                "the engine has no prefix cache, so no size of it is better than another: give a"
                " run or a twin of one that has"
            )

    @classmethod
    def of_run(cls, path: Path) -> "AdviceLoad":
        """The requests of a recorded run. Raises UsageError."""
        engine, run = CalibratedEngine.of_run(path), recorded_run(path)
        if Fleet.of_run(run) != ONE_ENGINE:
            raise UsageError(f"{path} is of several engines: advice is about one, give such a run")
        load = recorded_load(path, engine.shape.block_size)
        seed = int(run.description.get("seed") or 0)
        command = run.description.get("command_line") or []
        has_tier = "the run's engine has a tier: sizes are of caches without"
        remarks = (*load.remarks, *([has_tier] if engine.shape.tier else []))
        return cls(load, engine, command, seed, frozenset(load.measured) or None, remarks)


@dataclass(frozen=True, slots=True)
class AdviceOptions:
    """What to try: `sizes` in tokens (none: from the longest request to all that is used again),
    none above `most_tokens`; whether the highest rates are searched; bytes of a token of KV where
    tiers are to be tried."""

    sizes: tuple[int, ...] = ()
    most_tokens: int | None = None
    with_rates: bool = False
    bytes_per_token: int | None = None
    price: float | None = None


def advise(
    model: TwinModel, about: AdviceLoad, limit: Limit, options: AdviceOptions | None = None
) -> Advice:
    """Serve the load on every candidate. Raises UsageError."""
    options = options or AdviceOptions()
    seen = _seen(model, about)
    shape = about.engine.shape
    trace = Trace(
        seen.chains,
        shape.block_size,
        users=seen.in_flight,
        step_tokens=shape.max_num_batched_tokens,
        most_running=shape.max_num_seqs,
    )
    knee = predict(trace).knee
    found = [
        _candidate(model, about, blocks, order, limit)
        for blocks in _sizes_tried(trace.block_size, knee, options, seen.longest_tokens)
        for order in ORDERS
    ]
    if options.with_rates:
        found = list(_rated(model, about, found, limit))
    advice = Advice(limit, tuple(found), None, None, options.most_tokens)
    if (fastest := advice.fastest) is not None:
        found = [_with_interval(model, about, e, limit) if e is fastest else e for e in found]
        advice = replace(advice, candidates=tuple(found))
    chosen = advice.smallest(False) or advice.smallest(True) or found[-1]
    return replace(
        advice,
        price=options.price,
        reuse=_reuse(trace, chosen.kv_tokens),
        tier=_tiers(model, about, _below(found, limit), limit, trace, knee, options),
        seen=len(trace.chains) if len(trace.chains) == MOST_SEEN else 0,
        has_bytes=bool(options.bytes_per_token or about.engine.bytes_per_token),
    )


def _below(found: Sequence[SizeTried], limit: Limit) -> SizeTried:
    """The largest cache that misses the limit, first come, which a tier might help over it; else
    the smallest."""
    missing = [each for each in found if not each.by_context and not each.keeps(limit)]
    return missing[-1] if missing else found[0]


@dataclass
class _Seen:
    """The first prompts of a load as chains of blocks, in the order of sending; `longest_tokens` is
    what the longest of all requests needs in the cache."""

    names: BlockNames
    in_flight: int = 1
    longest_tokens: int = 0
    _by_turn: dict[int, Chain] = field(default_factory=dict)

    def take(self, each: ServedRequest) -> None:
        self.longest_tokens = max(self.longest_tokens, cached_most(each.request))
        if len(self._by_turn) < MOST_SEEN:
            chain = self.names.chain(each.request.prompt, each.request.output_tokens)
            self._by_turn[each.turn] = chain

    @property
    def chains(self) -> tuple[Chain, ...]:
        return tuple(self._by_turn[turn] for turn in sorted(self._by_turn))


def _seen(model: TwinModel, about: AdviceLoad) -> _Seen:
    found = _Seen(BlockNames(about.engine.shape.block_size))
    shape = replace(about.engine.shape, tier=None)
    prediction = predict_load(model, about.load, shape, on_served=found.take)
    found.in_flight = max(1, prediction.ledger.peak_running)
    never_sent = (outgoing.unit for outgoing in prediction.unsent)
    ahead = chain(never_sent, islice(about.load.units, UNITS))  # which the search for a rate sends
    longest = (cached_most(each) for unit in ahead for each in unit.requests)
    found.longest_tokens = max(found.longest_tokens, _checked_tokens(about.load), *longest)
    return found


def _checked_tokens(load: OfferedLoad) -> int:
    """The least cache with which a run of a workload begins; 0 of another load."""
    if not isinstance(load, PlannedLoad) or not isinstance(load.workload, Workload):
        return 0
    return load.workload.least_cache_tokens(load.labels == RETRIEVED)


def _sizes_tried(size: int, knee: Knee, options: AdviceOptions, longest_tokens: int) -> list[int]:
    """Blocks, evenly spread on a scale of factors, with the knee. Raises UsageError where not even
    the longest request fits, or not in one that was asked for."""
    most = math.inf if options.most_tokens is None else options.most_tokens // size
    least = max(2, knee.least_tokens // size, math.ceil(longest_tokens / size))
    if any(tokens // size > MOST_BLOCKS for tokens in options.sizes):
        raise UsageError(
            f"--kv-tokens {max(options.sizes):,} is out of range: give at most"
            f" {MOST_BLOCKS * size:,}"
        )
    found = {tokens // size for tokens in options.sizes} or _grid(size, knee, least, most)
    fitting = sorted(blocks for blocks in found if least <= blocks <= most)
    left_out = [f"{each:,}" for each in options.sizes if each // size not in fitting]
    if left_out or not fitting:
        named = f"--kv-tokens {', '.join(left_out)}: " if left_out else ""
        fits = "" if math.isinf(most) else f", and {options.most_tokens:,} tokens fit"
        raise UsageError(
            f"{named}the longest request needs {least * size:,} tokens of cache{fits}: give other"
            " --kv-tokens, or a larger --gpu-gb"
        )
    return fitting


def _grid(size: int, knee: Knee, least: int, most: float) -> set[int]:
    most = min(max(knee.working_set_tokens // size, least + 1), most)
    even = np.geomspace(least, max(most, least), SIZES)
    return {round(blocks) for blocks in even} | {min(knee.enough_tokens // size, int(most))}


def _reuse(trace: Trace, kv_tokens: int) -> Reuse | None:
    """What of it this cache holds, and what it would take to hold nearly all."""
    stack = LruStack(trace)
    share = stack.share_within(kv_tokens // trace.block_size)
    if share is None:
        return None
    nearly_all = (stack.reuse_distance(NEARLY_ALL) + 1) * trace.block_size
    return Reuse(share, kv_tokens, nearly_all)


def _rated(
    model: TwinModel, about: AdviceLoad, found: Sequence[SizeTried], limit: Limit
) -> Iterator[SizeTried]:
    """With the highest rates, each search from where the one before it ended."""
    begin = {
        order: next(e for e in found if e.by_context == order).prediction.figures["requests_per_s"]
        for order in {each.by_context for each in found}
    }
    for each in found:
        judge, begins_per_s = _judge(model, about, each, limit), begin[each.by_context]
        rate = find_rate(about.load, judge, limit.bound, begins_per_s, about.seed)
        begin[each.by_context] = rate.per_s or begins_per_s
        yield replace(each, rate=rate)


def _judge(model: TwinModel, about: AdviceLoad, tried: SizeTried, limit: Limit) -> Judge:
    shape = _shape(about, tried.kv_tokens // about.engine.shape.block_size, tried.by_context)

    def judge(load: OfferedLoad) -> tuple[float, int, float]:
        told = predict_load(model, load, shape)
        return predicted_value(limit, told), told.cut + len(told.unsent), told.figures[RATE]

    return judge


def _with_interval(
    model: TwinModel, about: AdviceLoad, tried: SizeTried, limit: Limit
) -> SizeTried:
    """With the interval of its rate, by searches on a server faster and on one slower by what runs
    differ. What the limited figure differs by beyond that makes the limit looser or stricter."""
    factor = model.speed_factor
    if tried.rate is None or factor == math.inf:
        return tried
    per_s = tried.rate.per_s
    low, high = model.interval(per_s, RATE)
    more = model.interval(1.0, _figure(model, limit))[1] / factor
    rates = [
        find_rate(
            about.load,
            _judge(model.slower(each), about, tried, limit),
            limit.bound * scale,
            per_s / each,
            about.seed,
        ).per_s
        for each, scale in ((factor, 1 / more), (1 / factor, more))
    ]
    return replace(tried, rate=HighestRate(per_s, (min(low, *rates), max(high, *rates))))


def _tiers(
    model: TwinModel,
    about: AdviceLoad,
    below: SizeTried,
    limit: Limit,
    trace: Trace,
    knee: Knee,
    options: AdviceOptions,
) -> TierAdvice | None:
    """None where the bytes of a token, or its time, are not known."""
    each, reused_tokens = options.bytes_per_token or about.engine.bytes_per_token, _reused(trace)
    low, token_s, high = _token_s(model, reused_tokens / 2)
    if not each or not token_s:
        return None
    computing = Computing(each, 1 / token_s)
    size = about.engine.shape.block_size
    tokens = max(knee.working_set_tokens, size)
    tried = []
    for factor in TIER_BANDWIDTHS:
        link = Link("tier", factor * computing.break_even_bytes_per_s, TIER_LATENCY_S)
        tier = TierShape("a tier", tokens, each, link, None, size, about.engine.is_on_cpu)
        found = _candidate(model, about, below.kv_tokens // size, False, limit, tier)
        tried.append(replace(found, tier_tokens=tokens, bytes_per_s=link.bytes_per_s))
    return TierAdvice(
        bytes_per_token=each,
        reused_tokens=round(reused_tokens),
        break_even=computing.break_even_bytes_per_s,
        interval=(each / high if high else 0.0, each / low if low else math.inf),
        below=below,
        tried=tuple(tried),
    )


def _token_s(model: TwinModel, attended: float) -> tuple[float, float, float]:
    """Seconds to compute a prompt token that attends to so many, between least and most."""
    prefill_s, attended_s = model.step.prefill_token_s, model.step.attended_s
    prefill = model.intervals.get("step.prefill_token_s", (prefill_s, prefill_s))
    pairs = model.intervals.get("step.attended_s", (attended_s, attended_s))
    low, high = (one + each * attended for one, each in zip(prefill, pairs, strict=True))
    return low, prefill_s + attended_s * attended, high


def _reused(trace: Trace) -> float:
    """Tokens at the beginning of a prompt that came before, on average of those with any."""
    seen: set[int] = set()
    found = []
    for each in trace.chains:
        found.append(trace.block_size * sum(block in seen for block in each.blocks))
        seen.update(each.blocks)
    return sum(found) / max(1, np.count_nonzero(found))


def parse_objective(text: str) -> Limit:
    """A limit on a time, as `ttft_ms.p95<=500`. Raises UsageError."""
    limit = slo_limit(text)
    name = limit.statistic.metric.name
    if name not in LIMITED or limit.kind != "value" or not limit.at_most:
        raise UsageError(
            f"--slo {text}: the twin tells {' and '.join(LIMITED)}: write ttft_ms.p95<=500"
        )
    return limit


def predicted_value(limit: Limit, told: TwinPrediction) -> float:
    """What is limited, in ms. Of requests without an end those count that had waited beyond the
    limit; the others might have been good."""
    is_first = limit.statistic.metric.name == "ttft_ms"
    served_s = told.ttft_s if is_first else told.e2e_s
    open_ms = 1000 * (told.open_ttft_s if is_first else told.open_e2e_s)
    return value_of(limit, np.concatenate((1000 * served_s, open_ms[open_ms > limit.bound])))


def value_of(limit: Limit, values_ms: Floats) -> float:
    """What is limited of such times, in ms."""
    quantile = limit.statistic.quantile
    return float(values_ms.mean() if quantile is None else np.quantile(values_ms, quantile))


def _shape(about: AdviceLoad, blocks: int, by_context: bool) -> EngineShape:
    shape = about.engine.shape
    plugin = (shape.plugin or ()) if by_context else None
    return replace(shape, usable_blocks=blocks, plugin=plugin, tier=None)


def _candidate(
    model: TwinModel,
    about: AdviceLoad,
    blocks: int,
    by_context: bool,
    limit: Limit,
    tier: TierShape | None = None,
) -> SizeTried:
    shape = replace(_shape(about, blocks, by_context), tier=tier)
    prediction = predict_load(model, about.load, shape, counted=about.counted)
    value = predicted_value(limit, prediction)
    tokens = blocks * shape.block_size
    interval = _interval(model, about, shape, limit, prediction)
    return SizeTried(tokens, by_context, prediction, value, interval)


def _interval(
    model: TwinModel, about: AdviceLoad, shape: EngineShape, limit: Limit, found: TwinPrediction
) -> tuple[float, float]:
    """Of what is limited; where it may queue, also on a server faster or slower by what runs
    differ."""
    low, high = model.interval(predicted_value(limit, found), _figure(model, limit))
    factor = model.speed_factor
    if not found.may_queue(about.load) or factor == math.inf:
        return low, high
    for each in (1 / factor, factor):
        try:
            told = predicted_value(
                limit,
                predict_load(model.slower(each), about.load, shape, counted=about.counted),
            )
        except UsageError:  # nothing is served to its end
            told = math.inf
        low, high = min(low, told), max(high, told)
    return low, high


def _figure(model: TwinModel, limit: Limit) -> str:
    """What the twin knows the error of that is limited, or of the same metric what is off most."""
    name = FIGURES.get(limit.statistic.name, "")
    of_metric = limit.statistic.metric.name.removesuffix("ms")
    alike = [each for each in model.figure_sd if each.startswith(of_metric)]
    return name or max(alike, key=lambda each: model.figure_sd[each], default="")
