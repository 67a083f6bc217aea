"""When requests are meant to go out in an open loop."""

import math
import re
from dataclasses import dataclass
from random import Random
from typing import Literal, Protocol, Self, get_args

from loadgen.errors import UsageError
from loadgen.workload.settings import random_bits

MOST_PER_S = 1_000_000
"""More than any swarm sends: a slip of the keys would fill the memory with what is due."""
_NUMBER = r"\+?[0-9.]+(?:[eE][+-]?[0-9]+)?"
_PHASE = re.compile(
    rf"\s*(?P<low>{_NUMBER})\s*(?:-\s*(?P<high>{_NUMBER})\s*)?(?::\s*(?P<s>[0-9.]+)\s*s?\s*)?"
)
Arrivals = Literal["closed", "constant", "poisson", "gamma", "trace"]
ARRIVALS: tuple[Arrivals, ...] = get_args(Arrivals)


@dataclass(frozen=True, slots=True)
class Phase:
    """`seconds` in which the rate goes evenly from `first` to `last` requests a second."""

    first: float
    last: float
    seconds: float

    @property
    def arrivals(self) -> float:
        """How many are expected in it, where it has an end."""
        return (self.first + self.last) / 2 * self.seconds

    def after_s(self, arrivals: float) -> float:
        """When so many are expected to have come, in seconds since the phase began.

        Solves first t + slope t^2 / 2 = arrivals in the form that stays exact for a slope near 0.
        """
        slope = (self.last - self.first) / self.seconds
        root = math.sqrt(max(0.0, self.first * self.first + 2 * slope * arrivals))
        return 2 * arrivals / (self.first + root) if self.first + root else 0.0

    def __str__(self) -> str:
        rate = f"{self.first:g}" if self.first == self.last else f"{self.first:g}-{self.last:g}"
        return rate if math.isinf(self.seconds) else f"{rate}:{self.seconds:g}"


@dataclass(frozen=True, slots=True)
class Rate:
    """Phases one after another; the last holds its rate for good."""

    phases: tuple[Phase, ...]

    @classmethod
    def parse(cls, text: str, name: str = "--rate") -> Self:
        """Read `5`, or phases such as `2:30,2-10:60,10`: 30 s at 2, 60 s from 2 to 10, then 10.

        A last phase that has a length is followed by its own last rate. Raises UsageError.
        """
        phases = [_phase(part, name, text) for part in text.split(",")]
        if any(math.isinf(phase.seconds) for phase in phases[:-1]):
            raise UsageError(
                f"{name} {text!r} has a phase without a length before its last one:"
                " write RATE:SECONDS, as 2:30,10"
            )
        last = phases[-1]
        if not math.isinf(last.seconds):
            phases.append(Phase(last.last, last.last, math.inf))
        if not phases[-1].last > 0:
            raise UsageError(f"{name} {text!r} ends at no rate: let the last one be above 0")
        return cls(tuple(phases))

    def time_s(self, arrivals: float) -> float:
        """When so many arrivals are expected since the start, in seconds: the inverse of the mean.

        Arrivals of a process of rate 1, put at these times, are the same process with this rate
        (time change; Cinlar, Introduction to Stochastic Processes, 1975, section 4.7).
        """
        began_s = 0.0
        for phase in self.phases[:-1]:
            if arrivals < phase.arrivals:
                return began_s + phase.after_s(arrivals)
            arrivals -= phase.arrivals
            began_s += phase.seconds
        return began_s + arrivals / self.phases[-1].last

    def __str__(self) -> str:
        return ",".join(map(str, self.phases))


def _phase(part: str, name: str, text: str) -> Phase:
    found = _PHASE.fullmatch(part)
    try:
        if found is None:
            raise ValueError
        first = float(found["low"])
        last = float(found["high"] or first)
        seconds = float(found["s"]) if found["s"] else math.inf
    except ValueError:
        raise UsageError(
            f"{name} {text!r} is no rate: write requests a second, as 5, or phases"
            " RATE:SECONDS and FROM-TO:SECONDS, as 2:30,2-10:60,10"
        ) from None
    if not (max(first, last) <= MOST_PER_S and seconds > 0):
        raise UsageError(
            f"{name} {text!r} is out of range: give at most {MOST_PER_S:,} requests a second, and"
            " lengths above 0"
        )
    if math.isinf(seconds) and first != last:
        raise UsageError(f"{name} {text!r} ramps without an end: write FROM-TO:SECONDS")
    return Phase(first, last, seconds)


class Pacer(Protocol):
    """An endless schedule, the same for the same arguments wherever it is made.

    The n-th arrival belongs to the draw with index n. A worker that owns some of the draws steps
    through all arrivals and keeps those of its draws, as it does with the stream: what the workers
    send together is exactly this schedule.
    """

    def next_s(self) -> float:
        """Intended time of the next arrival in seconds since the start; never decreases."""


class ConstantPacer:
    """Arrivals at even distances while the rate holds, the first at 0."""

    def __init__(self, rate: Rate) -> None:
        self._rate = rate
        self._arrivals = 0

    def next_s(self) -> float:
        """Intended time in seconds: from the count, so that no rounding error adds up."""
        time_s = self._rate.time_s(self._arrivals)
        self._arrivals += 1
        return time_s


class GammaPacer:
    """Arrivals whose distances are independent and gamma-distributed with mean 1/rate.

    `burstiness` is the distribution's shape k: the distances vary by 1/sqrt(k) of their mean.
    1 is a Poisson process, below 1 arrivals come in bursts, above 1 more evenly. The same
    parameter as in vLLM's `bench serve`.
    """

    def __init__(self, rate: Rate, burstiness: float, seed: int) -> None:
        self._rate = rate
        self._shape = burstiness
        self._random = Random(random_bits(seed, "arrivals", 0))
        self._arrivals = 0.0

    def next_s(self) -> float:
        """Intended time in seconds."""
        self._arrivals += self._distance()
        return self._rate.time_s(self._arrivals)

    def _distance(self) -> float:
        if self._shape == 1:
            return -math.log1p(-self._random.random())
        return self._random.gammavariate(self._shape, 1 / self._shape)


def make_pacer(
    arrivals: str, rate: Rate | None, seed: int, burstiness: float | None = None
) -> Pacer | None:
    """The pacer for `--arrivals`, `--rate` and `--burstiness`; None for the closed loop.

    Those of a trace come from the trace itself. Raises UsageError.
    """
    if arrivals not in ARRIVALS or arrivals == "trace":
        raise UsageError(f"--arrivals {arrivals!r} is unknown: choose {', '.join(ARRIVALS)}")
    if burstiness is not None and arrivals != "gamma":
        raise UsageError(f"--burstiness {burstiness:g} needs --arrivals gamma")
    if arrivals == "closed":
        if rate is not None:
            raise UsageError(f"--rate {rate} needs --arrivals constant, poisson or gamma")
        return None
    if rate is None:
        raise UsageError(f"--arrivals {arrivals} needs a rate: add --rate, in requests a second")
    if arrivals == "constant":
        return ConstantPacer(rate)
    return GammaPacer(rate, burstiness or 1.0, seed)
