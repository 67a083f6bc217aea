"""The highest rate of an open loop that keeps a limit, by simulation and bisection."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import islice

from loadgen.twin.sending import Pace, SendUnit
from loadgen.twin.serve import OfferedLoad
from loadgen.workload.arrivals import GammaPacer, Phase, Rate

UNITS = 300
"""Of the load, the first ones: so many come at each rate that is tried, as a Poisson process."""
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
    """The first units of another load, at so many of them a second."""

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
        for unit in islice(self.load.units, UNITS):
            yield replace(unit, due_s=pacer.next_s(), session="")


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
