"""What happened to one request: the row of `requests.csv`."""

from dataclasses import dataclass, fields
from typing import Literal, get_args

Outcome = Literal[
    "ok", "http_error", "timeout", "truncated", "connect_error", "cancelled", "malformed"
]
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """One request from its intended start to its end.

    `*_s` are seconds since the run's `start_unix_s`; `ttft_ms` and `e2e_ms` count from
    `scheduled_s`. None means "not known" or "did not happen" and is written as an empty cell.
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


COLUMNS: tuple[str, ...] = tuple(field.name for field in fields(RequestRecord))
