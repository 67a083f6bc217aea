"""What happened to a request or a batch: the rows of `requests.csv` and `batches.csv`."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Literal, get_args

Outcome = Literal[
    "ok",
    "http_error",
    "rejected",
    "timeout",
    "truncated",
    "connect_error",
    "cancelled",
    "malformed",
]
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)
NEVER_SENT = "due before the end of the run, but every user was busy"
CAME_TOO_LATE = "due before the end of the run, but this client came too late to send it"
"""The `error` of what was cancelled for that."""


@dataclass(slots=True)
class RequestRecord:
    """One request from its intended start to its end; not to be changed once it is made.

    Frozen only by this word: making a frozen one of 35 fields costs four times as much, and there
    is one for each request.

    `*_s` are seconds since the run's `start_unix_s`; `ttft_ms` and `e2e_ms` count from
    `scheduled_s`. `context_id` is the true context, `rag_context_id` the one that was retrieved.
    None means "not known" or "did not happen" and is written as an empty cell.
    """

    request_id: str
    """Position in the swarm's stream, from 0."""
    worker: str
    """Index of the process that sent it, from 0."""
    user: str
    """Locust user, unique within its process; empty where it was never sent."""
    context_id: str
    """The true context, whatever was sent: the document's id, or `mix-N` if composed."""
    question_id: str
    """The question; `~2`, `~3` mark variations of one already asked of this context."""
    repeat: bool
    """Whether the whole prompt was sent, or in a batch drawn, before in this run."""
    scheduled_s: float
    """When it was meant to go: in the closed loop `sent_s`, or when its retrieval began."""
    sent_s: float | None
    """When it was handed to the engine's connection; opening one counts as part of the request."""
    first_token_s: float | None
    """Arrival of the first event with output."""
    end_s: float
    """Arrival of the last event; unless `ok`, when the end was noticed."""
    ttft_ms: float | None
    """Time to first token: `first_token_s` - `scheduled_s`."""
    itl_mean_ms: float | None
    """Inter-token latency: mean of the gaps between events with output."""
    itl_p50_ms: float | None
    """Median gap."""
    itl_p95_ms: float | None
    """Their 95th percentile."""
    itl_p99_ms: float | None
    """Their 99th percentile."""
    itl_max_ms: float | None
    """Longest gap."""
    tpot_ms: float | None
    """Time per output token: (last token - first token) / (`output_tokens` - 1), without reasoning
    that is not streamed; an event counts as one at least."""
    e2e_ms: float | None
    """`end_s` - `scheduled_s`."""
    prompt_tokens: int | None
    """By the host's count."""
    cached_tokens: int | None
    """Prompt tokens from a cache, by the host's word; empty where it says none, or more than the
    prompt has (see `error`)."""
    output_tokens: int | None
    """By the host's count."""
    outcome: Outcome
    """How it ended."""
    status: int | None
    """HTTP status."""
    error: str
    """What went wrong, without API keys and header values."""
    batch_id: str = ""
    """The batch it was part of."""
    label: str = ""
    """The context that the request told the host."""
    rag_context_id: str = ""
    """The context before the question: retrieved, or wrong by `--rag-wrong`, with `--labels kv` the
    true one; empty where the service refused."""
    label_correct: bool | None = None
    """Whether what the service found is `context_id`, false where it refused; without a service
    whether `label` is."""
    retrieval_ms: float | None = None
    """From asking the RAG or KV service to its answer, waits for a full queue included; part of
    `ttft_ms` and `e2e_ms`."""
    slo_met: bool | None = None
    """Whether it ended `ok` within every limit of `--slo`; empty where it was cut off while it
    could still keep them."""
    resends: int | None = None
    """1 where it was sent again, else 0: the host hung up on a kept connection within a second. Its
    time ran on."""
    retries: int | None = None
    """How often it was tried again by `--retry`, after a `rejected`; its time ran on."""
    engine: str = ""
    """Which engine answered, by the reply's `X-Served-By`."""
    late: bool | None = None
    """True of a `timeout` cut off when it had waited too long: metrics have the latency it had at
    least."""
    kv_scope: str = ""
    """How its body keeps its KV apart, as `model=NAME` or a digest of `cache_salt`; else empty."""

    def waited_ms(self, name: str) -> float | None:
        """Of a request that did not end `ok`: how long a latency had run that had no end yet."""
        if name not in WAITING or (name != "e2e_ms" and getattr(self, name) is not None):
            return None
        # Only a retrieval comes before the sending of what a user has begun.
        is_retrieval = self.sent_s is None and bool(self.user) and not self.batch_id
        return self.e2e_ms if name != "retrieval_ms" or is_retrieval else None

    def latency_ms(self, name: str) -> float | None:
        """What counts in a metric: of an `ok` request the column, of one that is `late` the column
        or at least what it had waited, of others None."""
        if self.outcome != "ok" and (not self.late or name not in LATENCIES):
            return None
        waited_ms = self.waited_ms(name) if self.late else None
        known: float | None = getattr(self, name)
        return known if waited_ms is None else waited_ms


WAITING = ("ttft_ms", "e2e_ms", "retrieval_ms")
"""Columns that count from when a request was due."""
BETWEEN_TOKENS = (
    "itl_mean_ms",
    "itl_p50_ms",
    "itl_p95_ms",
    "itl_p99_ms",
    "itl_max_ms",
    "tpot_ms",
)
"""Columns that a reply of fewer than two tokens has not; of a request that is `late` they have the
gap that was open when it was cut off."""
LATENCIES = frozenset((*WAITING, *BETWEEN_TOKENS))
"""Columns of which a request that is `late` has what it had at least."""

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
    """Position in the swarm's sequence of batches, from 0."""
    worker: str
    """Index of the process that sent it."""
    user: str
    """Locust user; empty where it was never sent."""
    requests: int
    """Its members: rows of `requests.csv` with this `batch_id`."""
    ok: int
    """Members that ended `ok`."""
    contexts: int
    """Distinct contexts among the members."""
    scheduled_s: float
    """When it was meant to go: equals `sent_s` in the closed loop."""
    sent_s: float | None
    """First send of a member."""
    first_token_s: float | None
    """First event with output for any member."""
    first_reply_s: float | None
    """The earliest `end_s` of an `ok` member."""
    last_reply_s: float | None
    """The latest `end_s` of an `ok` member."""
    makespan_s: float | None
    """`last_reply_s` - `scheduled_s`; empty unless every member ended `ok`."""
    call_prompt_tokens: int | None
    """Of a list call: prompt tokens counted for the call, which no row of `requests.csv` has."""
    call_output_tokens: int | None
    """The same of output tokens."""
    outcome: BatchOutcome
    """How it ended."""


BATCH_COLUMNS: tuple[str, ...] = tuple(field.name for field in fields(BatchRecord))


def batch_record(
    batch_id: str,
    members: Sequence[RequestRecord],
    call_tokens: tuple[int | None, int | None] = (None, None),
) -> BatchRecord:
    """The record of a batch, whose members all have one.

    `call_tokens` are prompt and output tokens that the host counted for a list call and for no
    member alone.
    """
    scheduled_s = min(member.scheduled_s for member in members)
    replies_s = [member.end_s for member in members if member.outcome == "ok"]
    is_whole = len(replies_s) == len(members)
    return BatchRecord(
        batch_id=batch_id,
        worker=members[0].worker,
        user=members[0].user,
        requests=len(members),
        ok=len(replies_s),
        contexts=len({member.context_id for member in members}),
        scheduled_s=scheduled_s,
        sent_s=_earliest([member.sent_s for member in members]),
        first_token_s=_earliest([member.first_token_s for member in members]),
        first_reply_s=min(replies_s, default=None),
        last_reply_s=max(replies_s, default=None),
        makespan_s=max(replies_s) - scheduled_s if is_whole else None,
        call_prompt_tokens=call_tokens[0],
        call_output_tokens=call_tokens[1],
        outcome=_batch_outcome(members, is_whole),
    )


def _earliest(times_s: Sequence[float | None]) -> float | None:
    return min((time_s for time_s in times_s if time_s is not None), default=None)


def _batch_outcome(members: Sequence[RequestRecord], is_whole: bool) -> BatchOutcome:
    if is_whole:
        return "ok"
    if all(member.sent_s is None and member.outcome == "cancelled" for member in members):
        return "cancelled"
    failed = all(member.outcome not in ("ok", "cancelled") for member in members)
    return "failed" if failed else "partial"
