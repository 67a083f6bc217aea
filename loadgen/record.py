"""What happened to a request or a batch: the rows of `requests.csv` and `batches.csv`."""

from dataclasses import dataclass, fields
from typing import Literal, get_args

Outcome = Literal[
    "ok", "http_error", "timeout", "truncated", "connect_error", "cancelled", "malformed"
]
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)


@dataclass(slots=True)
class RequestRecord:
    """One request from its intended start to its end; not to be changed once it is made.

    Frozen only by this word: making a frozen one of 31 fields costs four times as much, and there
    is one for each request.

    `*_s` are seconds since the run's `start_unix_s`; `ttft_ms` and `e2e_ms` count from
    `scheduled_s`. `context_id` is the true context, `rag_context_id` the one that was retrieved.
    None means "not known" or "did not happen" and is written as an empty cell.
    """

    request_id: str
    worker: str
    user: str
    context_id: str
    question_id: str
    repeat: bool
    scheduled_s: float
    sent_s: float | None
    first_token_s: float | None
    end_s: float
    ttft_ms: float | None
    itl_mean_ms: float | None
    itl_p50_ms: float | None
    itl_p95_ms: float | None
    itl_p99_ms: float | None
    itl_max_ms: float | None
    tpot_ms: float | None
    e2e_ms: float | None
    prompt_tokens: int | None
    cached_tokens: int | None
    output_tokens: int | None
    outcome: Outcome
    status: int | None
    error: str
    batch_id: str = ""
    label: str = ""
    rag_context_id: str = ""
    label_correct: bool | None = None
    retrieval_ms: float | None = None
    slo_met: bool | None = None
    resends: int | None = None


COLUMNS: tuple[str, ...] = tuple(field.name for field in fields(RequestRecord))

BatchOutcome = Literal["ok", "partial", "failed", "cancelled"]
BATCH_OUTCOMES: tuple[BatchOutcome, ...] = get_args(BatchOutcome)


@dataclass(frozen=True, slots=True)
class BatchRecord:
    """One batch, timed as a unit. None means "not known" or "did not happen".

    `*_s` are seconds since the run's `start_unix_s`, but `makespan_s` is from `scheduled_s` to
    `last_reply_s`, and None unless every member ended `ok`. A reply counts when it is complete.
    `call_*_tokens` are what the host counted for a list call as a whole and for none of its
    members alone: added to the members' own counts they give the tokens of the batch.
    """

    batch_id: str
    worker: str
    user: str
    requests: int
    ok: int
    contexts: int
    scheduled_s: float
    sent_s: float | None
    first_token_s: float | None
    first_reply_s: float | None
    last_reply_s: float | None
    makespan_s: float | None
    call_prompt_tokens: int | None
    call_output_tokens: int | None
    outcome: BatchOutcome


BATCH_COLUMNS: tuple[str, ...] = tuple(field.name for field in fields(BatchRecord))
