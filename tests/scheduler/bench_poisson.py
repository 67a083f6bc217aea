"""Latency under Poisson arrivals, on the real scheduler with a virtual clock."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

from engine_shape import EngineShape, settings
from ledger import Ledger
from virtual_engine import VirtualEngine
from virtual_load import Mix, poisson

REQUESTS = 400
BLOCKS = 80
LOADS = (0.5, 0.95, 1.1, 1.5, 2.0)
SEEDS = range(10)
OVERLOAD_RATE = 1000.0
HOT_SHARE = 0.97
HOT_CONTEXTS = 16


@dataclass(frozen=True, slots=True)
class Latency:
    """What one run's clients saw: seconds from arrival to the last token, and overtakes."""

    mean_s: float
    p99_s: float
    worst_s: float
    computed_tokens: int
    overtakes: int
    over_bound: int


@dataclass(frozen=True, slots=True)
class PoissonRow:
    """Medians over seeds of one policy at `load` x the capacity of first come, first served.

    `over_bound` is how far the worst request of all seeds was past its stated bound of overtakes:
    0 or less holds it. Ratios are medians of the ratios to FCFS on the same arrivals.
    """

    policy: str
    load: float
    mean_s: float
    p99_s: float
    mean_ratio: float
    p99_ratio: float
    computed_tokens: float
    overtakes: int
    over_bound: int


@dataclass(frozen=True, slots=True)
class StarvationRow:
    """One hot context with 97 % of the load beside cold ones, in overload."""

    policy: str
    cold_mean_s: float
    cold_worst_s: float
    hot_mean_s: float
    cold_overtakes: int
    over_bound: int


def percentile(values: Sequence[float], share: float) -> float:
    """The value at or below which `share` of the values lie; nearest rank."""
    ranked = sorted(values)
    return ranked[max(0, min(len(ranked) - 1, -(-int(share * 1000 * len(ranked)) // 1000) - 1))]


def capacity(mix: Mix, shape: EngineShape, count: int = REQUESTS) -> float:
    """Requests per second that first come, first served completes when all wait at once."""
    engine = VirtualEngine(shape)
    engine.run(poisson(mix, OVERLOAD_RATE, count))
    return count / engine.now_s


def overtake_bound(ledger: Ledger, name: str, plugin: dict[str, Any]) -> int:
    """The stated bound of one request: max_overtakes + quantum x (older waiting contexts + 1)."""
    contexts = ledger.contexts_ahead[name] + 1
    return int(plugin.get("max_overtakes", 64) + plugin.get("quantum", 32) * contexts)


def latency(ledger: Ledger, plugin: dict[str, Any] | None) -> Latency:
    """Summary of one run; without a plugin the bound of overtakes is 0."""
    times = list(ledger.latencies_s().values())
    overtakes = ledger.overtakes()
    bound = {n: overtake_bound(ledger, n, plugin) if plugin is not None else 0 for n in overtakes}
    return Latency(
        mean_s=fmean(times),
        p99_s=percentile(times, 0.99),
        worst_s=max(times),
        computed_tokens=ledger.computed_tokens,
        overtakes=max(overtakes.values()),
        over_bound=max(overtakes[name] - bound[name] for name in overtakes),
    )


def poisson_mix(seed: int) -> Mix:
    """The workload of the Poisson rows."""
    return Mix(contexts=16, seed=seed)


def serve(
    mix: Mix,
    rate: float,
    plugin: dict[str, Any] | None,
    blocks: int = BLOCKS,
    count: int = REQUESTS,
    weights: Sequence[float] | None = None,
) -> Ledger:
    """One run of `count` Poisson arrivals; `plugin` None is vLLM's own scheduler."""
    shape = EngineShape(usable_blocks=blocks, plugin=None if plugin is None else settings(**plugin))
    return VirtualEngine(shape).run(poisson(mix, rate, count, weights))


def poisson_rows(
    policies: dict[str, dict[str, Any]],
    loads: Sequence[float] = LOADS,
    seeds: Sequence[int] = SEEDS,
    count: int = REQUESTS,
) -> list[PoissonRow]:
    """FCFS and each policy (name: plugin settings) at each load."""
    shape = EngineShape(usable_blocks=BLOCKS)
    rates = {seed: capacity(poisson_mix(seed), shape, count) for seed in seeds}
    rows = []
    for load in loads:
        base = _runs(None, load, rates, count)
        rows.append(_row("stock", load, base, base))
        for name, plugin in policies.items():
            rows.append(_row(name, load, _runs(plugin, load, rates, count), base))
    return rows


def _runs(
    plugin: dict[str, Any] | None, load: float, rates: dict[int, float], count: int
) -> list[Latency]:
    return [
        latency(serve(poisson_mix(seed), load * rate, plugin, count=count), plugin)
        for seed, rate in rates.items()
    ]


def _row(policy: str, load: float, runs: list[Latency], base: list[Latency]) -> PoissonRow:
    pairs = list(zip(runs, base, strict=True))
    return PoissonRow(
        policy=policy,
        load=load,
        mean_s=median(run.mean_s for run in runs),
        p99_s=median(run.p99_s for run in runs),
        mean_ratio=median(run.mean_s / other.mean_s for run, other in pairs),
        p99_ratio=median(run.p99_s / other.p99_s for run, other in pairs),
        computed_tokens=median(run.computed_tokens for run in runs),
        overtakes=max(run.overtakes for run in runs),
        over_bound=max(run.over_bound for run in runs),
    )


def starvation_row(
    policy: str, plugin: dict[str, Any] | None, seed: int = 0, count: int = 2000, load: float = 1.5
) -> StarvationRow:
    """Overload in which the cold contexts share 3 % of the arrivals."""
    mix = Mix(contexts=HOT_CONTEXTS, seed=seed)
    weights = [HOT_SHARE] + [(1 - HOT_SHARE) / (HOT_CONTEXTS - 1)] * (HOT_CONTEXTS - 1)
    shape = EngineShape(usable_blocks=BLOCKS)
    engine = VirtualEngine(shape)
    engine.run(poisson(mix, OVERLOAD_RATE, count, weights))
    ledger = serve(mix, load * count / engine.now_s, plugin, count=count, weights=weights)
    times, overtakes = ledger.latencies_s(), ledger.overtakes()
    cold = [name for name in times if not name.startswith("c0-")]
    bound = {n: overtake_bound(ledger, n, plugin) if plugin is not None else 0 for n in overtakes}
    return StarvationRow(
        policy=policy,
        cold_mean_s=fmean(times[name] for name in cold),
        cold_worst_s=max(times[name] for name in cold),
        hot_mean_s=fmean(time for name, time in times.items() if name.startswith("c0-")),
        cold_overtakes=max(overtakes[name] for name in cold),
        over_bound=max(overtakes[name] - bound[name] for name in overtakes),
    )
