"""The end of a run: summary, last words in `run.json`, what the terminal says, the exit code."""

from typing import TYPE_CHECKING, Any

from loadgen.runs.emitted import emitted_diversity
from loadgen.runs.exit_code import exit_code
from loadgen.runs.latencies import read_latencies
from loadgen.stats.steady_state import SteadyState, find_steady_state, is_meant_steady
from loadgen.stats.summary import summarize, write_summary

if TYPE_CHECKING:
    from loadgen.swarm.leading.leader import Leader


def close_run(leader: "Leader") -> int:
    """Write the summary into the run directory and return the run's exit code."""
    leader.ledger.flush()
    if leader.directory is not None:
        leader.directory.close()
    summary = summarize_run(leader)
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
    leader.view.report(summary, leader.directory.path if leader.directory else None)
    return code


def summarize_run(leader: "Leader") -> dict[str, Any]:
    """The figures of `summary.json`."""
    assert leader.preparation is not None
    counts = leader.ledger.counts
    warmup, steady_state = _warmup(leader)
    tally = counts.counted
    saturation, course = leader.ledger.clients.verdict(), leader.server.course
    diversity = None
    if leader.directory is not None:
        diversity = emitted_diversity(
            leader.directory.requests.path, leader.stats_reset_s, counts.warmup_s or 0.0
        )
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
        "warmup": warmup,
        "steady_state": None if steady_state is None else steady_state.to_json(),
    }


def _warmup(leader: "Leader") -> tuple[dict[str, Any] | None, SteadyState | None]:
    """What `--warmup` left out, which may have to be found now, and the state of the rest."""
    counts = leader.ledger.counts
    given, found = counts.warmup_s is not None, _steady_state(leader, counts.warmup_s or 0.0)
    if not given and found is not None and found.early:
        counts.leave_out(found.from_s)
        found = _steady_state(leader, counts.warmup_s or 0.0)
    if counts.warmup_s == 0:
        return None, found
    left_out = {
        "seconds": counts.warmup_s or 0.0,
        "requests": counts.warmup.requests,
        "failed": counts.warmup.failed,
        "given": given,
    }
    return left_out, found


def _steady_state(leader: "Leader", warmup_s: float) -> SteadyState | None:
    """Of a run that was meant to be steady, and has kept its requests."""
    ready = leader.preparation
    if leader.directory is None or ready is None:
        return None
    if not is_meant_steady(ready.raw_options, ready.batched):
        return None
    file = leader.directory.requests.path
    return find_steady_state(*read_latencies(file, leader.stats_reset_s, warmup_s))
