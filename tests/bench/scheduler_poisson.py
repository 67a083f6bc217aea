"""Poisson arrivals on the real engine above what vLLM's own order can serve; a report, no must."""

import asyncio
import random
import statistics
import time
from dataclasses import dataclass

from cpu_watch import CpuWatch
from figures import percentile
from scheduler_batches import Batch, Question
from scheduler_cases import TWO_ARMS, Arm
from scheduler_engine import counters, measure_batch, rise, send, settled_counters
from scheduler_rows import EnginePoissonRow
from scheduler_servers import STOCK, EngineSetup, Server

SETUP = EngineSetup(80)
LOAD = 1.5
ARRIVALS_S = 25.0
MOST_REQUESTS = 400
CALIBRATION = Batch(contexts=16, per_context=5)


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request and when it is sent, in seconds from the start."""

    at_s: float
    question: Question


async def poisson_rows(servers: dict[str, Server]) -> list[EnginePoissonRow]:
    """Both arms on the same arrivals at `LOAD` x the rate at which stock serves a full queue.

    Takes about a minute for each arm.
    """
    full = await measure_batch(servers[STOCK], CALIBRATION, labelled=True)
    rate = LOAD * CALIBRATION.requests / full.total_s
    coming = arrivals(rate, min(MOST_REQUESTS, round(rate * ARRIVALS_S)))
    return [await _serve(servers[arm.policy], arm, coming, rate) for arm in TWO_ARMS]


def arrivals(rate: float, count: int, seed: int = 0) -> list[Arrival]:
    """`count` different questions, `rate` a second on average; contexts come equally often."""
    dice = random.Random(f"arrivals-{seed}")
    pool = Batch(contexts=CALIBRATION.contexts, per_context=-(-count // CALIBRATION.contexts))
    now_s, coming = 0.0, []
    for question in pool.questions()[:count]:
        now_s += dice.expovariate(rate)
        coming.append(Arrival(now_s, question))
    return coming


async def _serve(server: Server, arm: Arm, coming: list[Arrival], rate: float) -> EnginePoissonRow:
    await server.target.make_cold()
    before, watch = await counters(server), CpuWatch()
    start = time.perf_counter()

    async def ask(arrival: Arrival) -> float:
        await asyncio.sleep(start + arrival.at_s - time.perf_counter())
        exchange = await send(server, arrival.question, CALIBRATION.output_tokens, arm.labelled)
        return (exchange.end_at or start) - start - arrival.at_s

    latencies_s = sorted(await asyncio.gather(*map(ask, coming)))
    others_cpu = watch.others()
    after = await settled_counters(server, before, len(coming))
    return EnginePoissonRow(
        arm=arm.name,
        load=LOAD,
        rate=rate,
        requests=len(coming),
        mean_s=statistics.fmean(latencies_s),
        p99_s=percentile(latencies_s, 0.99),
        worst_s=latencies_s[-1],
        computed_tokens=rise(before, after, "computed_prompt_tokens"),
        others_cpu=others_cpu,
    )
