"""Latency under Poisson arrivals, on the real scheduler with a virtual clock."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

from engine_shape import EngineShape
from figures import percentile
from scheduler_rows import VirtualPoissonRow, VirtualStarvationRow
from scheduler_virtual_batches import POLICIES, shape_of
from virtual_engine import VirtualEngine, overtakes
from virtual_load import Mix, poisson

from loadgen.twin.ledger import EngineLedger
from scheduler_plugin.settings import OrderSettings

REQUESTS = 400
SHAPE = EngineShape(usable_blocks=80)
LOADS = (0.5, 0.95, 1.1, 1.5, 2.0)
OVERLOAD_RATE = 1000.0
HOT_SHARE, HOT_LOAD, HOT_REQUESTS = 0.97, 1.5, 2000


@dataclass(frozen=True, slots=True)
class Latency:
    """What one run's clients saw: seconds from arrival to the last token, and overtakes."""

    mean_s: float
    p99_s: float
    computed_tokens: int
    overtakes: int
    over_bound: int


def capacity(mix: Mix, count: int = REQUESTS, weights: Sequence[float] | None = None) -> float:
    """Requests per second that first come, first served completes when all wait at once."""
    engine = VirtualEngine(SHAPE)
    engine.run(poisson(mix, OVERLOAD_RATE, count, weights))
    return count / engine.now_s


def over_bound(ledger: EngineLedger, plugin: dict[str, Any] | None) -> int:
    """How far the worst request was past its bound of overtakes, which is 0 without a plugin.

    The bound is max_overtakes + quantum x (older waiting contexts + 1); of policy reuse
    max_overtakes, or half of the most that waited at once if these were more.
    """
    counts = overtakes(ledger)
    if plugin is None:
        return max(counts.values())
    chosen = OrderSettings(**plugin)
    if chosen.policy == "reuse":
        most_waiting = max(ledger.waiting_ahead.values()) + 1
        return max(counts.values()) - max(chosen.max_overtakes, (most_waiting + 1) // 2)
    return max(
        count - chosen.max_overtakes - chosen.quantum * (ledger.contexts_ahead[name] + 1)
        for name, count in counts.items()
    )


def latency(ledger: EngineLedger, plugin: dict[str, Any] | None) -> Latency:
    """Summary of one run."""
    times = sorted(ledger.latencies_s().values())
    return Latency(
        mean_s=fmean(times),
        p99_s=percentile(times, 0.99),
        computed_tokens=ledger.computed_tokens,
        overtakes=max(overtakes(ledger).values()),
        over_bound=over_bound(ledger, plugin),
    )


def poisson_mix(seed: int) -> Mix:
    """The workload of the Poisson rows."""
    return Mix(contexts=16, seed=seed)


def serve(
    mix: Mix,
    rate: float,
    plugin: dict[str, Any] | None,
    count: int = REQUESTS,
    weights: Sequence[float] | None = None,
) -> EngineLedger:
    """One run of `count` Poisson arrivals; `plugin` None is vLLM's own scheduler."""
    return VirtualEngine(shape_of(SHAPE, plugin)).run(poisson(mix, rate, count, weights))


def poisson_rows(seeds: Iterable[int]) -> list[VirtualPoissonRow]:
    """Each policy at each load, stock first."""
    rates = {seed: capacity(poisson_mix(seed)) for seed in seeds}
    rows = []
    for load in LOADS:
        stock: list[Latency] = []
        for policy, plugin in POLICIES.items():
            runs = _runs(plugin, load, rates)
            stock = stock or runs
            rows.append(_row(policy, load, runs, stock))
    return rows


def _runs(plugin: dict[str, Any] | None, load: float, rates: dict[int, float]) -> list[Latency]:
    return [
        latency(serve(poisson_mix(seed), load * rate, plugin), plugin)
        for seed, rate in rates.items()
    ]


def _row(policy: str, load: float, runs: list[Latency], base: list[Latency]) -> VirtualPoissonRow:
    pairs = list(zip(runs, base, strict=True))
    return VirtualPoissonRow(
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


def starvation_rows() -> list[VirtualStarvationRow]:
    """Each policy in an overload in which the cold contexts share 3 % of the arrivals."""
    mix = poisson_mix(seed=0)
    weights = [HOT_SHARE] + [(1 - HOT_SHARE) / (mix.contexts - 1)] * (mix.contexts - 1)
    rate = HOT_LOAD * capacity(mix, HOT_REQUESTS, weights)
    return [
        _starvation_row(policy, plugin, serve(mix, rate, plugin, HOT_REQUESTS, weights))
        for policy, plugin in POLICIES.items()
    ]


def _starvation_row(
    policy: str, plugin: dict[str, Any] | None, ledger: EngineLedger
) -> VirtualStarvationRow:
    times, counts = ledger.latencies_s(), overtakes(ledger)
    cold = [name for name in times if not name.startswith("c0-")]
    return VirtualStarvationRow(
        policy=policy,
        cold_mean_s=fmean(times[name] for name in cold),
        cold_worst_s=max(times[name] for name in cold),
        hot_mean_s=fmean(time for name, time in times.items() if name.startswith("c0-")),
        cold_overtakes=max(counts[name] for name in cold),
        over_bound=over_bound(ledger, plugin),
    )
