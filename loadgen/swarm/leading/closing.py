"""The end of a run: summary, last words in `run.json`, what the terminal says, the exit code."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from loadgen.runs.columns import Columns
from loadgen.runs.exit_code import exit_code
from loadgen.runs.requests import CONTEXTS, Requests, read_requests
from loadgen.stats.counts import Counts
from loadgen.stats.steady_state import COLUMNS, SteadyState
from loadgen.stats.summary import summarize, write_summary
from loadgen.swarm.sending.request_sender import CUT_OFF_RETRIEVAL
from loadgen.workload.diversity import measure_diversity

if TYPE_CHECKING:
    from loadgen.swarm.leading.leader import Leader


def close_run(leader: "Leader") -> int:
    """Write the summary into the run directory and return the run's exit code."""
    leader.ledger.flush()
    if leader.directory is not None:
        leader.directory.close()
    rows = _rows(leader)
    summary = summarize_run(leader, rows)
    assert leader.preparation is not None
    user_errors = sum(row["count"] for row in leader.environment.runner.exceptions.values())
    code = exit_code(
        summary,
        host_died=leader.host_died,
        max_failures_percent=leader.preparation.options.max_failures_percent,
        lost_workers=summary["lost_workers"],
        user_errors=user_errors,
    )
    if leader.directory is not None:
        write_summary(leader.directory.path, summary)
        ended = {"host_died": leader.host_died, "interrupted": leader.interrupted}
        leader.directory.describe({"exit_code": code, "user_errors": user_errors, **ended})
    path = leader.directory.path if leader.directory else None
    leader.view.report(summary, path, _still_waiting(leader, rows))
    return code


def _rows(leader: "Leader") -> Columns | None:
    """What the run kept of its requests, read once: it may have millions of them."""
    ready = leader.preparation
    if leader.directory is None or ready is None:
        return None
    found = () if ready.rag is None else (*CONTEXTS, "error")
    return read_requests(leader.directory.requests.path, (*COLUMNS, "context_id", *found))


def _still_waiting(leader: "Leader", rows: Columns | None) -> int:
    """Requests that a RAG service which stopped answering has left: cancelled is no failure."""
    ready = leader.preparation
    if rows is None or ready is None or ready.rag is None:
        return 0
    cancelled = rows.text("outcome").among("cancelled")
    return int((cancelled & rows.text("error").among(CUT_OFF_RETRIEVAL)).sum())


def summarize_run(leader: "Leader", rows: Columns | None = None) -> dict[str, Any]:
    """The figures of `summary.json`; `rows` are those of `requests.csv`."""
    assert leader.preparation is not None
    counts = leader.ledger.counts
    requests = _counted(leader, rows)
    steady_state = _steady_state(leader, requests)
    is_found = counts.warmup_s is None
    if is_found and steady_state is not None and steady_state.early:
        counts.leave_out(steady_state.from_s)
        requests = _counted(leader, rows)
        steady_state = _steady_state(leader, requests)
    tally = counts.counted
    saturation, course = leader.ledger.clients.verdict(), leader.server.course
    diversity = None if requests is None else asdict(measure_diversity(requests.emitted()))
    summary = summarize(
        tally,
        duration_s=(tally.last_end_s or 0.0) - (tally.first_sent_s or 0.0),
        diversity=diversity,
        server=course.figures() if course.count >= 2 else None,
        client_saturated=saturation.saturated,
        client_saturated_reason=saturation.reason,
    )
    lost = (leader.roll.lost, leader.roll.lost_share) if leader.roll is not None else (0, 0.0)
    return summary | {
        "server_note": leader.server.note,
        "stats_reset_s": leader.stats_reset_s,
        "lost_workers": lost[0],
        "lost_share": lost[1],
        "warmup": _left_out(counts, is_given=not is_found),
        "steady_state": None if steady_state is None else steady_state.to_json(),
    }


def _counted(leader: "Leader", rows: Columns | None) -> Requests | None:
    """The requests that count, None where they were not kept."""
    if rows is None:
        return None
    return Requests.of(rows, leader.stats_reset_s, leader.ledger.counts.warmup_s or 0.0)


def _steady_state(leader: "Leader", requests: Requests | None) -> SteadyState | None:
    ready = leader.preparation
    if requests is None or ready is None:
        return None
    return requests.steady_state(ready.raw_options, ready.batched)


def _left_out(counts: Counts, is_given: bool) -> dict[str, Any] | None:
    """What `--warmup` left out, which may have been found just now."""
    if counts.warmup_s == 0:
        return None
    return {
        "seconds": counts.warmup_s or 0.0,
        "requests": counts.warmup.requests,
        "failed": counts.warmup.failed,
        "given": is_given,
    }
