"""One batch on the real engine: sent at once to cold caches, counted by the engine itself."""

import asyncio
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cpu_watch import CpuWatch
from figures import percentile
from scheduler_batches import Batch, Question
from scheduler_servers import Server

from loadgen.client.exchange import Exchange
from loadgen.stats.server_counters import ServerSample
from loadgen.stats.server_metrics import MetricsScraper

COUNTERS_TIMEOUT_S, COUNTERS_PAUSE_S = 10.0, 0.05
STORING_S = 1.0
"""LMCache stores what was computed after the reply."""


@dataclass(frozen=True, slots=True)
class BatchFigures:
    """What one batch cost.

    `computed_tokens` are prompt tokens by the engine's own counters, `external_tokens` those it
    got from LMCache. `total_s` is from the first send to the last reply, TTFT from the first send
    too. `others_cpu` is the share of the machine (0 to 1) that other programs took meanwhile.
    """

    computed_tokens: int
    external_tokens: int
    preemptions: int
    total_s: float
    ttft_p50_s: float
    ttft_p95_s: float
    others_cpu: float


async def measure_batch(
    server: Server, batch: Batch, labelled: bool, warm: bool = False
) -> BatchFigures:
    """Empty the caches, fill them again if they are to be `warm`, and serve one batch.

    Raises RuntimeError when a request fails.
    """
    await server.target.make_cold()
    if warm:
        await serve_openings(server, batch)
    questions = batch.questions()
    before, watch = await counters(server), CpuWatch()
    start = time.perf_counter()
    exchanges = await send_all(server, questions, batch.output_tokens, labelled)
    others_cpu = watch.others()
    after = await settled_counters(server, before, len(questions))
    ttfts = sorted(exchange.token_times[0] - start for exchange in exchanges)
    return BatchFigures(
        computed_tokens=rise(before, after, "computed_prompt_tokens"),
        external_tokens=rise(before, after, "external_prompt_tokens"),
        preemptions=rise(before, after, "num_preemptions"),
        total_s=max(exchange.end_at or start for exchange in exchanges) - start,
        ttft_p50_s=statistics.median(ttfts),
        ttft_p95_s=percentile(ttfts, 0.95),
        others_cpu=others_cpu,
    )


async def serve_openings(server: Server, batch: Batch) -> None:
    """Have every context computed once, one after the other, and kept."""
    for opening in batch.openings():
        await send(server, opening, 1, labelled=True)
    await asyncio.sleep(STORING_S)


async def send_all(
    server: Server, questions: Sequence[Question], output_tokens: int, labelled: bool
) -> list[Exchange]:
    """All requests at once, in their order; returns when the last reply is there."""
    sends = [send(server, question, output_tokens, labelled) for question in questions]
    return list(await asyncio.gather(*sends))


async def send(
    server: Server,
    question: Question,
    output_tokens: int,
    labelled: bool,
    exchange: Exchange | None = None,
    **body: Any,
) -> Exchange:
    """One request to its end. Raises RuntimeError unless its reply is complete."""
    exchange = exchange or Exchange()
    body["prompt"] = question.prompt
    if labelled:
        body["vllm_xargs"] = {"context": question.context}
    await server.client.stream("", output_tokens, exchange, body)
    if exchange.outcome != "ok" or exchange.output_tokens != output_tokens:
        raise RuntimeError(f"a request was {exchange.outcome}: {exchange.error or exchange.lack}")
    return exchange


async def counters(server: Server) -> ServerSample:
    """The engine's counters now."""
    async with MetricsScraper(server.sources) as scraper:
        return await scraper.scrape(time.perf_counter())


async def settled_counters(server: Server, before: ServerSample, requests: int) -> ServerSample:
    """The counters once they know of all requests since `before`. Raises RuntimeError."""
    deadline = time.perf_counter() + COUNTERS_TIMEOUT_S
    while time.perf_counter() < deadline:
        sample = await counters(server)
        if rise(before, sample, "request_success") >= requests:
            return sample
        await asyncio.sleep(COUNTERS_PAUSE_S)
    raise RuntimeError(f"the engine's counters never counted all {requests} requests")


def rise(before: ServerSample, after: ServerSample, counter: str) -> int:
    """How far a counter rose."""
    return round((getattr(after, counter) or 0) - (getattr(before, counter) or 0))
