"""What one order did in one random case, and how orders compare over many."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import fmean

from ask import Ask
from computed_bound import Chains, lower_bound, prefix_blocks
from scheduler_study_cases import StudyCase, study_case
from virtual_engine import VirtualEngine

from loadgen.twin.ledger import EngineLedger
from scheduler_plugin.safe_queue import SafeQueue

STOCK, OURS, SGLANG = "stock", "reuse", "SGLang's lpm"
METRICS = ("tokens", "mean_s", "p99_s")
WORSE, MUCH_WORSE, ALIKE = 1.03, 1.25, 0.995


@dataclass(frozen=True, slots=True)
class StudyRow:
    """What one order did in one case; `same_order` is against stock, `load` None is one burst.

    No order that is idle whenever stock was computes less than `bound_tokens`, which stock's row
    has alone.
    """

    family: str
    seed: int
    fits: bool
    load: float | None
    order: str
    tokens: int
    mean_s: float
    p99_s: float
    same_order: bool
    bound_tokens: int


def asks_of(case: StudyCase) -> list[Ask]:
    """Its requests with their times of arrival."""
    return case.asks(_rate(case.family, case.seed))


@cache
def _rate(family: str, seed: int) -> float | None:
    """Arrivals a second: a share of what stock completes when all wait at once; None at once."""
    case = study_case(family, seed)
    if case.load is None:
        return None
    engine = VirtualEngine(case.shape)
    engine.run(case.asks(None))
    return case.load * len(case.prompts) / engine.now_s


def served(engine: VirtualEngine, asks: Sequence[Ask]) -> EngineLedger:
    """What it did with them. Raises RuntimeError where the plugin is off or failed: figures of
    vLLM's own queue would stand under its name."""
    ledger = engine.run(asks)
    waiting = engine.scheduler.waiting
    if engine.shape.plugin is not None and not isinstance(waiting, SafeQueue):
        raise RuntimeError(f"the plugin is off: {type(waiting).__name__} served")
    return ledger


def study_row(case: StudyCase, order: str, ledger: EngineLedger, stock: EngineLedger) -> StudyRow:
    """What that order did with all its requests."""
    latencies = sorted(ledger.latencies_s().values())
    assert len(latencies) == len(case.prompts)
    return StudyRow(
        family=case.family,
        seed=case.seed,
        fits=case.fits,
        load=case.load,
        order=order,
        tokens=ledger.computed_tokens + ledger.replayed_tokens,
        mean_s=fmean(latencies),
        p99_s=latencies[math.ceil(0.99 * len(latencies)) - 1],
        same_order=ledger.order == stock.order,
        bound_tokens=bound_tokens(case, stock) if ledger is stock else 0,
    )


def bound_tokens(case: StudyCase, ledger: EngineLedger) -> int:
    """The fewest prompt tokens of any order that is idle whenever that one was.

    Each block is computed once between two idle moments. Later it is there again unless what was
    asked since fills the cache, as vLLM evicts what was used longest ago.
    """
    size, room = case.shape.block_size, case.shape.usable_blocks
    chains: Chains = {}
    tokens, used = 0, list[set[int]]()  # by period, each block where it was used last
    for prompts in _busy_periods(ledger):
        cached: set[int] = set()
        younger = 0
        for blocks in reversed(used):
            if younger >= room:
                break
            cached |= blocks
            younger += len(blocks)
        tokens += lower_bound(prompts, size, chains, cached)
        own = {block for prompt in prompts for block in prefix_blocks(prompt, size, chains)}
        used = [blocks - own for blocks in used] + [own]
    return tokens


def _busy_periods(ledger: EngineLedger) -> list[list[tuple[int, ...]]]:
    """The prompts that arrived between two moments at which nothing waited or ran."""
    periods: list[list[tuple[int, ...]]] = []
    busy_until_s = -math.inf
    for ask in ledger.arrived:
        if busy_until_s <= ask.arrival_s:
            periods.append([])
        periods[-1].append(ask.prompt)
        busy_until_s = max(busy_until_s, ledger.finished_s[ask.name])
    return periods


def ratios(rows: Iterable[StudyRow], order: str, against: str, metric: str) -> list[float]:
    """Of one order to another, case by case."""
    return [getattr(case[order], metric) / getattr(case[against], metric) for case in by_case(rows)]


def by_case(rows: Iterable[StudyRow]) -> list[dict[str, StudyRow]]:
    """The rows of each case by their order."""
    found: dict[tuple[str, int], dict[str, StudyRow]] = {}
    for row in rows:
        found.setdefault((row.family, row.seed), {})[row.order] = row
    return list(found.values())


def geometric_mean(values: Iterable[float]) -> float:
    """Of positive values."""
    return math.exp(fmean(map(math.log, values)))


def share_above(values: Sequence[float], limit: float) -> float:
    """How many of them are above, 0 to 1."""
    return fmean(value > limit for value in values)
