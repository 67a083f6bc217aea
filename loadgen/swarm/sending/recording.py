"""From what a client saw of a request to the row that is kept."""

from loadgen.client.exchange import Exchange
from loadgen.context import Request
from loadgen.record import RequestRecord
from loadgen.stats.clock import RunClock
from loadgen.stats.token_gaps import spread
from loadgen.swarm.sending.retriever import FoundContext


def to_record(
    exchange: Exchange,
    request: Request,
    *,
    scheduled_at: float,
    clock: RunClock,
    worker: str,
    user: str,
    repeat: bool,
    batch_id: str = "",
    label: str = "",
    kv_scope: str = "",
    found: FoundContext | None = None,
) -> tuple[RequestRecord, list[float]]:
    """The record of one request and its inter-token gaps in ms.

    `scheduled_at` and the exchange's times are `time.perf_counter()` seconds of this process;
    TTFT and end-to-end latency count from `scheduled_at`. `label` is the one in the request, kept
    where the request was sent, `kv_scope` its column, `found` the context that was retrieved.
    """
    gaps_ms = exchange.gaps_ms
    itl_mean_ms, itl_p50_ms, itl_p95_ms, itl_p99_ms, itl_max_ms = spread(gaps_ms)
    end_at = exchange.end_at if exchange.end_at is not None else scheduled_at
    sent_label = label if exchange.sent_at is not None else ""
    record = RequestRecord(
        request_id=str(request.index),
        worker=worker,
        user=user,
        context_id=request.context_id,
        question_id=request.question_id,
        repeat=repeat,
        scheduled_s=clock.to_run_s(scheduled_at),
        sent_s=_to_run_s(clock, exchange.sent_at),
        first_token_s=_to_run_s(clock, exchange.first_token_at),
        end_s=clock.to_run_s(end_at),
        ttft_ms=_elapsed_ms(scheduled_at, exchange.first_token_at),
        itl_mean_ms=itl_mean_ms,
        itl_p50_ms=itl_p50_ms,
        itl_p95_ms=itl_p95_ms,
        itl_p99_ms=itl_p99_ms,
        itl_max_ms=itl_max_ms,
        tpot_ms=exchange.tpot_ms,
        e2e_ms=_elapsed_ms(scheduled_at, exchange.end_at),
        prompt_tokens=exchange.prompt_tokens,
        cached_tokens=exchange.cached_tokens,
        output_tokens=exchange.output_tokens,
        outcome=exchange.outcome,
        status=exchange.status,
        error=exchange.error,
        batch_id=batch_id,
        label=sent_label,
        rag_context_id=(found.context_id or "") if found else "",
        label_correct=_label_correct(request.context_id, sent_label, found),
        retrieval_ms=found.retrieval_ms if found else None,
        resends=None if exchange.sent_at is None else exchange.resends,
        retries=None if exchange.sent_at is None else exchange.retries,
        engine=exchange.served_by,
        kv_scope=kv_scope,
    )
    return record, gaps_ms


def _label_correct(context_id: str, label: str, found: FoundContext | None) -> bool | None:
    if found is not None:
        return found.label == context_id
    return label == context_id if label else None


def _to_run_s(clock: RunClock, at: float | None) -> float | None:
    return None if at is None else clock.to_run_s(at)


def _elapsed_ms(since: float, at: float | None) -> float | None:
    return None if at is None else (at - since) * 1000
