"""Prompt tokens a batch computes in each order, on the real scheduler with a virtual clock."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from ask import Ask
from computed_bound import lower_bound
from engine_shape import EngineShape, settings
from scheduler_rows import VirtualBatchRow
from virtual_engine import VirtualEngine, overtakes
from virtual_load import Mix, family, shuffled, unlabelled

CACHE_BLOCKS = (20, 40, 80, 158)
POLICIES: dict[str, dict[str, Any] | None] = {
    "stock": None,
    "reuse": {"policy": "reuse"},
    "prefix-group": {"policy": "prefix-group"},
    "lpm": {"policy": "lpm"},
    "lpm, no labels": {"policy": "lpm", "key": "prefix"},
}


@dataclass(frozen=True, slots=True)
class Batch:
    """One kind of batch: what is asked of which engine."""

    name: str
    mix: Mix
    shape: EngineShape

    def asks(self, seed: int) -> list[Ask]:
        """The requests, all waiting at once, in an order drawn from the seed."""
        return shuffled(replace(self.mix, seed=seed))


@dataclass(frozen=True, slots=True)
class FamilyBatch:
    """Documents below common system prompts, without labels."""

    name: str
    shape: EngineShape

    def asks(self, seed: int) -> list[Ask]:
        """Three system prompts, four documents below each, four questions below each."""
        return unlabelled(family(3, 4, 4, 900, 700, seed))


@dataclass(frozen=True, slots=True)
class _Run:
    bound_tokens: int
    computed_tokens: int
    total_s: float
    overtakes: int


def shape_of(shape: EngineShape, plugin: dict[str, Any] | None) -> EngineShape:
    """That engine with the plugin's settings, None for vLLM's own order."""
    return replace(shape, plugin=None if plugin is None else settings(**plugin))


def batches() -> list[Batch | FamilyBatch]:
    """The regimes of the table: cache sizes, then one thing changed at a time."""
    base, wide = Mix(), Mix(contexts=40, per_context=3)
    sizes = [Batch("6 x 6", base, EngineShape(usable_blocks=b)) for b in CACHE_BLOCKS]
    at_40 = EngineShape(usable_blocks=40)
    seats = [Batch(f"6 x 6, {n} seats", base, replace(at_40, max_num_seqs=n)) for n in (2, 8, 32)]
    many = [Batch(f"6 x {n}", replace(base, per_context=n), at_40) for n in (2, 12, 40)]
    return [
        *sizes,
        Batch("6 x 6, ample cache", base, EngineShape(usable_blocks=600)),
        *many,
        *seats,
        Batch("high diversity: 40 x 3", wide, EngineShape(usable_blocks=80)),
        Batch("no reuse: 40 x 1", replace(wide, per_context=1), EngineShape(usable_blocks=80)),
        Batch("4000-token contexts", replace(base, context_tokens=4000), EngineShape()),
        Batch("6 x 6, async", base, replace(at_40, async_scheduling=True)),
        FamilyBatch("3 systems x 4 documents", at_40),
    ]


def batch_rows(seeds: Iterable[int]) -> list[VirtualBatchRow]:
    """Each policy on each kind of batch, stock first."""
    rows: list[VirtualBatchRow] = []
    for kind in batches():
        stock: list[_Run] = []
        for policy, plugin in POLICIES.items():
            runs = [_run(kind, seed, plugin) for seed in seeds]
            stock = stock or runs
            rows.append(_row(kind, policy, runs, stock))
    return rows


def _run(kind: Batch | FamilyBatch, seed: int, plugin: dict[str, Any] | None) -> _Run:
    asks = kind.asks(seed)
    shape = shape_of(kind.shape, plugin)
    engine = VirtualEngine(shape)
    ledger = engine.run(asks)
    return _Run(
        bound_tokens=lower_bound([ask.prompt for ask in asks], shape.block_size),
        computed_tokens=ledger.computed_tokens,
        total_s=engine.now_s,
        overtakes=max(overtakes(ledger).values()),
    )


def _row(
    kind: Batch | FamilyBatch, policy: str, runs: list[_Run], stock: list[_Run]
) -> VirtualBatchRow:
    pairs = list(zip(runs, stock, strict=True))
    return VirtualBatchRow(
        batch=kind.name,
        policy=policy,
        usable_blocks=kind.shape.usable_blocks,
        max_num_seqs=kind.shape.max_num_seqs,
        requests=len(kind.asks(0)),
        bound_tokens=runs[0].bound_tokens,
        computed_tokens=median(run.computed_tokens for run in runs),
        most_tokens=max(run.computed_tokens for run in runs),
        over_bound=median(run.computed_tokens / run.bound_tokens for run in runs),
        total_s=median(run.total_s for run in runs),
        total_ratio=median(run.total_s / other.total_s for run, other in pairs),
        overtakes=max(run.overtakes for run in runs),
    )
