"""The figures of this moment, for a live view."""

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from loadgen.swarm.leader import Leader


@dataclass(frozen=True, slots=True)
class Pulse:
    """Totals of the run so far and rates since the pulse before."""

    at: float
    elapsed_s: float
    users: int
    requests: int
    failed: int
    output_tokens: int
    requests_per_s: float
    output_tokens_per_s: float
    retrieval_p50_ms: float | None
    retrieval_p95_ms: float | None
    ttft_p50_ms: float | None
    ttft_p95_ms: float | None
    e2e_p50_ms: float | None
    e2e_p95_ms: float | None
    hit_rate: float | None
    goodput_share: float | None


def pulse(leader: "Leader", last: Pulse | None) -> Pulse:
    """Take the pulse of the swarm; rates are over the time since `last`."""
    tally = leader.ledger.tally
    now = time.perf_counter()
    span_s = now - last.at if last else 0.0
    requests, tokens = tally.finished, tally.output_tokens
    ttft, e2e = tally.sketches["ttft_ms"], tally.sketches["e2e_ms"]
    retrieval = tally.sketches["retrieval_ms"]
    return Pulse(
        at=now,
        elapsed_s=time.time() - leader.plan.start_unix_s if leader.plan else 0.0,
        users=leader.environment.runner.user_count,
        requests=requests,
        failed=tally.failed,
        output_tokens=tokens,
        requests_per_s=(requests - last.requests) / span_s if last and span_s else 0.0,
        output_tokens_per_s=(tokens - last.output_tokens) / span_s if last and span_s else 0.0,
        retrieval_p50_ms=retrieval.quantile(0.5),
        retrieval_p95_ms=retrieval.quantile(0.95),
        ttft_p50_ms=ttft.quantile(0.5),
        ttft_p95_ms=ttft.quantile(0.95),
        e2e_p50_ms=e2e.quantile(0.5),
        e2e_p95_ms=e2e.quantile(0.95),
        hit_rate=_hit_rate(leader),
        goodput_share=tally.goodput_share,
    )


def _hit_rate(leader: "Leader") -> float | None:
    rate = leader.server.whole.figures()["hit_rate"]
    return leader.ledger.tally.cached_share if rate is None else float(rate)
