"""Simulated runs under models of noise: what a host, a machine and chance do to the times.

The requests of a pair of runs are the same: each has a demand, its time on an idle machine, that
both sides share. All else is drawn anew for each run. A slower side takes `slower` times as long
for each request.
"""

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator

from loadgen.runs.columns import Floats

SERVICE_S, USERS, RUN_S = 0.3, 8, 60.0
"""Mean demand of a request, users of a closed loop, and how long a run sends."""
BETWEEN_REQUESTS, WITHIN_REQUEST = 0.5, 0.2
"""Standard deviations of the logarithm: of demands, and of the time that one demand takes."""
GRID_S = 0.1


@dataclass(frozen=True, slots=True)
class SimulatedRun:
    """When each request was sent, and how long it took, in seconds; in the order of sending."""

    at_s: Floats
    took_s: Floats


Factor = Callable[[float], float]
"""What the machine does to a request that is sent at a second of the run: 1.1 is 10 % more time."""


@dataclass(frozen=True, slots=True)
class NoiseModel:
    """`run(requests, rng, slower)` makes one run: `requests` draws what both sides share. Of a
    model with `repeats` each side has so many runs; one with `noise_runs` knows the spread from so
    many others."""

    name: str
    run: Callable[[Generator, Generator, float], SimulatedRun]
    repeats: int = 1
    noise_runs: int = 0


def demands(requests: Generator, count: int) -> Floats:
    """Seconds, lognormal with the mean `SERVICE_S`."""
    middle = math.log(SERVICE_S) - BETWEEN_REQUESTS**2 / 2
    return requests.lognormal(middle, BETWEEN_REQUESTS, count)


def closed(
    requests: Generator,
    rng: Generator,
    slower: float,
    factor: Factor = lambda _: 1.0,
    run_s: float = RUN_S,
) -> SimulatedRun:
    """Users who each send their next request when the last reply is complete."""
    demand = iter(demands(requests, int(4 * USERS * run_s / SERVICE_S)))
    noise = iter(rng.lognormal(0, WITHIN_REQUEST, int(4 * USERS * run_s / SERVICE_S)))
    free = [0.001 * user for user in range(USERS)]
    sent: list[tuple[float, float]] = []
    while (at_s := heapq.heappop(free)) < run_s:
        took_s = next(demand) * next(noise) * factor(at_s) * slower
        sent.append((at_s, took_s))
        heapq.heappush(free, at_s + took_s)
    at, took = np.array(sent).T
    return SimulatedRun(at, took)


def single_server(load: float) -> Callable[[Generator, Generator, float], SimulatedRun]:
    """Poisson arrivals at one server, first come, first served: Lindley's recursion (1952)."""

    def run(requests: Generator, rng: Generator, slower: float) -> SimulatedRun:
        count = int(RUN_S * USERS / SERVICE_S)
        service_s = SERVICE_S / USERS
        at_s = np.cumsum(requests.exponential(service_s / load, count))
        demand = demands(requests, count) / USERS
        serve_s = demand * rng.lognormal(0, WITHIN_REQUEST, count) * slower
        free_s, took_s = 0.0, np.empty(count)
        for place, (arrival_s, each_s) in enumerate(zip(at_s, serve_s, strict=True)):
            free_s = max(free_s, arrival_s) + each_s
            took_s[place] = free_s - arrival_s
        return SimulatedRun(at_s, took_s)

    return run


def drift(deviation: float, correlation_s: float, rng: Generator) -> Factor:
    """A machine whose speed wanders: the logarithm is an Ornstein-Uhlenbeck process."""
    keep = math.exp(-GRID_S / correlation_s)
    shocks = rng.standard_normal(int(2 * RUN_S / GRID_S)) * deviation * math.sqrt(1 - keep * keep)
    level = [deviation * rng.standard_normal()]
    for shock in shocks:
        level.append(keep * level[-1] + shock)
    return lambda at_s: math.exp(level[min(len(level) - 1, int(at_s / GRID_S))])


def drifting(
    deviation: float, correlation_s: float
) -> Callable[[Generator, Generator, float], SimulatedRun]:
    """A closed loop on such a machine."""
    return lambda requests, rng, slower: closed(
        requests, rng, slower, drift(deviation, correlation_s, rng)
    )


def idle(requests: Generator, rng: Generator, slower: float) -> SimulatedRun:
    """Two requests a second that nobody waits behind, all alike; one in a hundred meets something
    and takes five times as long."""
    count = int(2 * RUN_S)
    at_s = np.cumsum(requests.exponential(0.5, count))
    outlier = np.where(rng.random(count) < 0.01, 5.0, 1.0)
    return SimulatedRun(at_s, 0.05 * rng.lognormal(0, 0.03, count) * outlier * slower)


def warming(requests: Generator, rng: Generator, slower: float) -> SimulatedRun:
    """Twice as slow at first, and a third of that is left after each five seconds."""
    return closed(requests, rng, slower, lambda at_s: 1 + math.exp(-at_s / 5))


def few(requests: Generator, rng: Generator, slower: float) -> SimulatedRun:
    """A closed loop of three seconds."""
    return closed(requests, rng, slower, run_s=3.0)


def spread(requests: Generator, rng: Generator, slower: float) -> SimulatedRun:
    """A closed loop in which all of a run is faster or slower by 3 %."""
    return closed(requests, rng, slower * math.exp(0.03 * rng.standard_normal()))


MODELS = (
    NoiseModel("closed loop, lognormal", closed),
    NoiseModel("open loop, one server at .7", single_server(0.7)),
    NoiseModel("open loop, one server at .9", single_server(0.9)),
    NoiseModel("drift of 10 % over 5 s", drifting(0.10, 5.0)),
    NoiseModel("drift of 15 % over 20 s", drifting(0.15, 20.0)),
    NoiseModel("idle", idle),
    NoiseModel("warm-up", warming),
    NoiseModel("few data", few),
    NoiseModel("3 % between runs, one run each", spread),
    NoiseModel("3 % between runs, a noise file of eight", spread, noise_runs=8),
    NoiseModel("3 % between runs, four runs each", spread, repeats=4),
)
