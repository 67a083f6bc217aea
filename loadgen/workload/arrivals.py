"""When requests are meant to go out in an open loop."""

import math
from random import Random
from typing import Literal, Protocol, get_args

from loadgen.errors import UsageError
from loadgen.workload.dice import roll

Arrivals = Literal["closed", "constant", "poisson"]
ARRIVALS: tuple[Arrivals, ...] = get_args(Arrivals)


class Pacer(Protocol):
    """An endless schedule, the same for the same arguments wherever it is made.

    The n-th arrival belongs to the draw with index n. A worker that owns some of the draws steps
    through all arrivals and keeps those of its draws, as it does with the stream.
    """

    def next_s(self) -> float:
        """Intended time of the next arrival in seconds since the start; never decreases."""

    def rate_per_s(self, elapsed_s: float) -> float:
        """Arrivals a second that are meant at this time of the run."""


class ConstantPacer:
    """Arrivals at even distances, the first at 0."""

    def __init__(self, rate_per_s: float) -> None:
        self._rate_per_s = _checked(rate_per_s)
        self._arrivals = 0

    def next_s(self) -> float:
        """Intended time in seconds: a quotient, so that no rounding error adds up."""
        time_s = self._arrivals / self._rate_per_s
        self._arrivals += 1
        return time_s

    def rate_per_s(self, elapsed_s: float) -> float:
        """The same at all times."""
        return self._rate_per_s


class PoissonPacer:
    """Arrivals independent of each other: exponential distances of mean 1/rate."""

    def __init__(self, rate_per_s: float, seed: int) -> None:
        self._rate_per_s = _checked(rate_per_s)
        self._chance = Random(roll(seed, "arrivals", 0)).random
        self._time_s = 0.0

    def next_s(self) -> float:
        """Intended time in seconds."""
        self._time_s -= math.log1p(-self._chance()) / self._rate_per_s
        return self._time_s

    def rate_per_s(self, elapsed_s: float) -> float:
        """The mean, the same at all times."""
        return self._rate_per_s


def make_pacer(arrivals: str, rate: float | None, seed: int) -> Pacer | None:
    """The pacer for `--arrivals` and `--rate`; None for the closed loop. Raises UsageError."""
    if arrivals not in ARRIVALS:
        raise UsageError(f"--arrivals {arrivals!r} is unknown: choose {', '.join(ARRIVALS)}")
    if arrivals == "closed":
        if rate is not None:
            raise UsageError(f"--rate {rate} needs --arrivals constant or poisson")
        return None
    if rate is None:
        raise UsageError(f"--arrivals {arrivals} needs a rate: add --rate, in requests a second")
    return ConstantPacer(rate) if arrivals == "constant" else PoissonPacer(rate, seed)


def _checked(rate_per_s: float) -> float:
    if not 0 < rate_per_s < math.inf:
        raise UsageError(f"--rate {rate_per_s} is no rate: give a number above 0")
    return rate_per_s
