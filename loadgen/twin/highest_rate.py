"""The highest rate of an open loop that keeps a limit, by simulation and bisection."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from loadgen.locality.trace import BlockNames
from loadgen.locality.trace_sources import USUAL_BLOCK_SIZE
from loadgen.twin.sending import Pace, SendUnit
from loadgen.twin.serve import OfferedLoad
from loadgen.workload.arrivals import GammaPacer, Phase, Rate

UNITS = 300
"""Of the load, the first ones: so many come at each rate that is tried, as a Poisson process."""
LEAST_UNITS = 100
"""Of fewer a rate would be that of a burst: they come again until they are so many."""
FRESH = 1_000_000
"""Above all ids of a tokenizer."""
EXACT = 1.05
"""Factor between a rate that keeps the limit and one that does not, at which a search ends."""
LEAST_SHARE = 2.0**-12
"""Of the rate at which a search begins, below which none is tried."""
BURST_PER_S = 1e6
"""All of them at once: what is served of it a second is what can be served."""
Judge = Callable[[OfferedLoad], tuple[float, int, float]]
"""The limited value of a load, how many requests had no end, and how many were served a second."""


@dataclass(frozen=True, slots=True)
class HighestRate:
    """Requests a second, 0 where no rate keeps the limit; `interval` is that of servers faster or
    slower by what runs differ, where it was searched."""

    per_s: float
    interval: tuple[float, float] = (0.0, math.inf)


@dataclass(frozen=True, slots=True)
class RatedLoad:
    """The first units of another load, at so many of them a second; a turn of a conversation waits
    for the one before it."""

    load: OfferedLoad
    units_per_s: float
    seed: int

    @property
    def pace(self) -> Pace:
        """An open loop without a cap."""
        return Pace(is_open=True)

    @property
    def units(self) -> Iterator[SendUnit]:
        """Each at its time."""
        rate = Rate((Phase(self.units_per_s, self.units_per_s, math.inf),))
        pacer = GammaPacer(rate, 1.0, self.seed)
        for unit in _enough(self.load.units):
            yield replace(unit, due_s=pacer.next_s())


def _enough(units: Iterable[SendUnit]) -> Iterator[SendUnit]:
    """The first ones; few come again, as other requests and conversations."""
    known: list[SendUnit] = []
    count = 0
    for count, unit in enumerate(islice(units, UNITS), 1):
        if count < LEAST_UNITS:
            known.append(unit)
        yield unit
    if not 0 < count < LEAST_UNITS:
        return
    shared = _shared_tokens(known)
    for number in range(count, LEAST_UNITS):
        yield _again(known[number % count], number, number // count, shared)


def _shared_tokens(units: Sequence[SendUnit]) -> Mapping[str, int]:
    """By request, how much of its prompt's beginning others have too, of other conversations."""
    names = BlockNames(USUAL_BLOCK_SIZE)
    chains = {
        each.name: (names.chain(each.prompt, 1).blocks, unit.session or each.name)
        for unit in units
        for each in unit.requests
    }
    owners: dict[int, set[str]] = {}
    for blocks, owner in chains.values():
        for block in blocks:
            owners.setdefault(block, set()).add(owner)
    return {
        name: USUAL_BLOCK_SIZE * sum(len(owners[block]) > 1 for block in blocks)
        for name, (blocks, _) in chains.items()
    }


def _again(unit: SendUnit, number: int, turn: int, shared: Mapping[str, int]) -> SendUnit:
    """With other names, and other tokens from where a prompt has nothing in common with others."""
    requests = []
    for each in unit.requests:
        ids, place = list(each.prompt), shared[each.name]
        ids[place : place + 1] = [token + turn * FRESH for token in ids[place : place + 1]]
        requests.append(replace(each, name=f"{each.name}~{turn}", prompt=tuple(ids)))
    session = unit.session and f"{unit.session}~{turn}"
    return replace(unit, number=number, requests=tuple(requests), session=session)


def find_rate(
    load: OfferedLoad, judge: Judge, bound: float, begin_per_s: float, seed: int
) -> HighestRate:
    """In requests a second, searched from `begin_per_s` on: doubled or halved until it is passed,
    then halved between. Where more never helps, which queues do not promise at a few requests, it
    is the highest. None is above what can be served: so few requests end before a queue that grows
    is as long as a loose limit allows."""
    size = _requests_per_unit(load)
    *_, most_per_s = judge(RatedLoad(load, BURST_PER_S, seed))

    def keeps(per_s: float) -> bool:
        if per_s > most_per_s:
            return False
        value, lost, _ = judge(RatedLoad(load, per_s / size, seed))
        return value <= bound and not lost

    high = low = max(begin_per_s, 1e-3)
    if keeps(low):
        while keeps(high := low * 2):
            low = high
    else:
        while not keeps(low := high / 2):
            if low < begin_per_s * LEAST_SHARE:
                return HighestRate(0.0)
            high = low
    while high / low > EXACT:
        middle = math.sqrt(low * high)
        if keeps(middle):
            low = middle
        else:
            high = middle
    return HighestRate(low)


def _requests_per_unit(load: OfferedLoad) -> float:
    counts = [len(unit.requests) for unit in islice(load.units, UNITS)]
    return sum(counts) / max(1, len(counts))
