"""From the records of its members to the row of a batch."""

from collections.abc import Sequence

from loadgen.client.protocol import Usage
from loadgen.context import Batch
from loadgen.record import BatchOutcome, BatchRecord, RequestRecord


def to_batch_record(
    batch: Batch, members: Sequence[RequestRecord], call_usage: Usage | None = None
) -> BatchRecord:
    """The record of a batch, whose members all have one.

    `call_usage` are the tokens that the host counted for a list call and for no member alone.
    """
    ok = [member for member in members if member.outcome == "ok"]
    scheduled_s = min(member.scheduled_s for member in members)
    replies_s = [member.end_s for member in ok]
    whole = len(ok) == len(members)
    return BatchRecord(
        batch_id=str(batch.index),
        worker=members[0].worker,
        user=members[0].user,
        requests=len(members),
        ok=len(ok),
        contexts=len({member.context_id for member in members}),
        scheduled_s=scheduled_s,
        sent_s=_earliest([member.sent_s for member in members]),
        first_token_s=_earliest([member.first_token_s for member in members]),
        first_reply_s=min(replies_s, default=None),
        last_reply_s=max(replies_s, default=None),
        makespan_s=max(replies_s) - scheduled_s if whole else None,
        call_prompt_tokens=call_usage.prompt_tokens if call_usage else None,
        call_output_tokens=call_usage.output_tokens if call_usage else None,
        outcome=_outcome(members, whole),
    )


def _earliest(times_s: Sequence[float | None]) -> float | None:
    return min((time_s for time_s in times_s if time_s is not None), default=None)


def _outcome(members: Sequence[RequestRecord], whole: bool) -> BatchOutcome:
    if whole:
        return "ok"
    if all(member.sent_s is None and member.outcome == "cancelled" for member in members):
        return "cancelled"
    failed = all(member.outcome not in ("ok", "cancelled") for member in members)
    return "failed" if failed else "partial"
