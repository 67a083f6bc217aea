"""How far any order gets in the random cases: a bound, and the best of many orders by hindsight."""

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any
from unittest.mock import patch

from ask import Ask
from engine_shape import settings
from scheduler_study_baselines import FewestLeftQueue, QueueEngine, RankedQueue
from scheduler_study_cases import StudyCase
from scheduler_study_rows import SGLANG, STOCK, WORSE, StudyRow, served, study_row
from virtual_engine import VirtualEngine

from loadgen.twin.ledger import EngineLedger
from scheduler_plugin.engine_view import Reason
from scheduler_plugin.group import Waiting
from scheduler_plugin.reuse import ReuseChoice

PASSES = {"1 time": 1, "4 times": 4, "16 times": 16}
"""How often a request may be passed for nothing but a longer cached prefix."""
TRIED_SEEDS, SEARCH_STEPS = 4, 24
"""Every fourth seed is looked at; so many changes to the best order are tried, twice."""
TOKENS, BOTH = "search: tokens", "search: mean and p99"
GAIN = 1.005
"""A case whose bound is nearer to what is to be beaten is not searched."""

Orders = Mapping[str, EngineLedger]


class PassingChoice(ReuseChoice[Any]):
    """`reuse`, but the oldest may also be passed `passes` times to save nothing: by whoever has the
    longest prefix in the cache."""

    def __init__(self, passes: int, *args: Any) -> None:
        super().__init__(*args)
        self._passes = passes
        self._entries: dict[Waiting[Any], None] = {}
        self._passed: Counter[Waiting[Any]] = Counter()
        self._passing: Waiting[Any] | None = None

    def waits(self, entry: Waiting[Any]) -> None:
        super().waits(entry)
        self._entries[entry] = None

    def leaves(self, entry: Waiting[Any]) -> None:
        super().leaves(entry)
        del self._entries[entry]

    def admitted(self, entry: Waiting[Any]) -> None:
        super().admitted(entry)
        if entry is self._passing:
            self._passed.update(each for each in self._entries if each.seq < entry.seq)

    def next(
        self, oldest: Waiting[Any], after_skip: bool = False
    ) -> tuple[Waiting[Any], Reason | None]:
        entry, reason = super().next(oldest, after_skip)
        self._passing = None
        if entry is not oldest or reason in ("overtakes", "wait"):
            return entry, reason
        if self._passed[oldest] >= self._passes:
            return entry, reason
        first = max(self._entries, key=lambda each: (self._resident(each), -each.seq))
        if self._resident(first) <= self._resident(oldest):
            return entry, reason
        self._passing = first
        return first, "resident"

    def _resident(self, entry: Waiting[Any]) -> int:
        return self._engine.resident_blocks(entry.request, 0)


def passing_engine(case: StudyCase, passes: int) -> VirtualEngine:
    """An engine with that choice."""
    with patch("scheduler_plugin.order.ReuseChoice", partial(PassingChoice, passes)):
        return VirtualEngine(replace(case.shape, plugin=settings()))


def ranked_engine(case: StudyCase, order: Sequence[str]) -> VirtualEngine:
    """An engine that admits those who wait in the order of these names."""
    places = {name: float(place) for place, name in enumerate(order)}
    return QueueEngine(partial(RankedQueue, places), case.shape)


def by_context(case: StudyCase, asks: Sequence[Ask], rank: Callable[[str], object]) -> list[str]:
    """Names, context by context in the order of a rank, by arrival within."""
    contexts = sorted(dict.fromkeys(prompt.context for prompt in case.prompts), key=rank)
    place = {context: number for number, context in enumerate(contexts)}
    own = [place[prompt.context] for prompt in case.prompts]
    return [asks[n].name for n in sorted(range(len(asks)), key=lambda n: (own[n], n))]


def hindsight_rows(case: StudyCase, asks: Sequence[Ask], known: Orders) -> list[StudyRow]:
    """More orders of a case, besides those `known`; none of a seed that is not looked at."""
    if case.seed % TRIED_SEEDS:
        return []
    engines = {name: passing_engine(case, passes) for name, passes in PASSES.items()}
    if not case.fits:
        engines |= _other_engines(case, asks)
    ledgers = {name: served(engine, asks) for name, engine in engines.items()}
    if not case.fits:
        ledgers |= _searched(case, asks, {**known, **ledgers})
    return [study_row(case, order, each, known[STOCK]) for order, each in ledgers.items()]


def _other_engines(case: StudyCase, asks: Sequence[Ask]) -> dict[str, VirtualEngine]:
    asked = Counter(prompt.context for prompt in case.prompts)
    lpm = settings(policy="lpm", key="prefix", max_overtakes=10_000)
    return {
        "fewest tokens left": QueueEngine(FewestLeftQueue, case.shape),
        "turns by context": VirtualEngine(replace(case.shape, plugin=lpm)),
        "contexts as they came": ranked_engine(case, by_context(case, asks, lambda _: 0)),
        "contexts most asked first": ranked_engine(
            case, by_context(case, asks, lambda context: -asked[context])
        ),
    }


def _searched(case: StudyCase, asks: Sequence[Ask], known: Orders) -> dict[str, EngineLedger]:
    rows = {order: study_row(case, order, each, known[STOCK]) for order, each in known.items()}

    def worth(objective: Callable[[StudyRow], float], ledger: EngineLedger) -> float:
        return objective(study_row(case, "", ledger, known[STOCK]))

    def excess(row: StudyRow) -> float:
        return max(row.mean_s / rows[SGLANG].mean_s, row.p99_s / rows[STOCK].p99_s)

    found = {}
    fewest = min(rows, key=lambda order: rows[order].tokens)
    if rows[fewest].tokens > GAIN * rows[STOCK].bound_tokens:
        tokens = partial(worth, lambda row: row.tokens)
        found[TOKENS] = _search(case, asks, known[fewest], tokens, 0.0)
    nearest = min(rows, key=lambda order: excess(rows[order]))
    if excess(rows[nearest]) > WORSE:
        found[BOTH] = _search(case, asks, known[nearest], partial(worth, excess), WORSE)
    return found


def _search(
    case: StudyCase,
    asks: Sequence[Ask],
    start: EngineLedger,
    worth: Callable[[EngineLedger], float],
    enough: float,
) -> EngineLedger:
    """The best of the orders that changes to the order of `start` lead to."""
    contexts = {ask.name: prompt.context for ask, prompt in zip(asks, case.prompts, strict=True)}
    dice = random.Random(f"search-{case.name}")
    best, least, order = start, worth(start), start.order
    for _ in range(SEARCH_STEPS):
        if least <= enough:
            break
        changed = _changed(dice, order, contexts)
        ledger = ranked_engine(case, changed).run(asks)
        value = worth(ledger)
        if value <= least:
            best, least, order = ledger, value, changed
    return best


def _changed(dice: random.Random, order: Sequence[str], contexts: Mapping[str, str]) -> list[str]:
    """Some go elsewhere: a few that follow each other, or those of a context to its first."""
    at = dice.randrange(len(order))
    end = at + dice.randrange(2, 40)
    head, part, rest = list(order[:at]), list(order[at:end]), list(order[end:])
    if dice.random() < 0.5:
        own = contexts[part[0]]
        return head + sorted(part, key=lambda name: contexts[name] != own) + rest
    few, others = part[: 1 + dice.randrange(8)], head + part + rest
    others = [name for name in order if name not in few]
    to = max(0, min(len(others), at + dice.randrange(-40, 41)))
    return [*others[:to], *few, *others[to:]]
