"""When requests are meant to go out in an open loop."""

import math
from random import Random
from typing import Literal, Protocol, get_args

from loadgen.errors import UsageError
from loadgen.workload.dice import roll
from loadgen.workload.rate import Rate

Arrivals = Literal["closed", "constant", "poisson", "gamma", "trace"]
ARRIVALS: tuple[Arrivals, ...] = get_args(Arrivals)


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
        self._random = Random(roll(seed, "arrivals", 0))
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
