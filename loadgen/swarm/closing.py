"""The end of a run: summary, last words in `run.json`, what the terminal says, the exit code."""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from loadgen.runs.emitted import emitted_diversity
from loadgen.runs.exit_code import exit_code
from loadgen.stats.self_watch import Saturation, SaturationRule
from loadgen.stats.server_counters import server_figures
from loadgen.stats.server_metrics import ServerSample
from loadgen.stats.summary import summarize, write_summary

if TYPE_CHECKING:
    from loadgen.swarm.leader import Leader


def close_run(leader: "Leader") -> int:
    """Write the summary into the run directory and return the run's exit code."""
    leader.ledger.flush()
    if leader.directory is not None:
        leader.directory.close()
    summary = summarize_run(leader)
    assert leader.preparation is not None
    code = exit_code(
        summary,
        host_died=leader.host_died,
        max_failures_percent=leader.preparation.options.max_failures_percent,
        lost_workers=summary["lost_workers"],
    )
    if leader.directory is not None:
        write_summary(leader.directory.path, summary)
        ended = {"host_died": leader.host_died, "interrupted": leader.interrupted}
        leader.directory.describe({"exit_code": code, **ended})
    leader.view.report(summary, leader.directory.path if leader.directory else None)
    return code


def judge_client(leader: "Leader") -> Saturation:
    """Whether the client has been fast enough so far in this run."""
    assert leader.preparation is not None
    rule = replace(SaturationRule(), max_lag_ms=leader.preparation.options.max_lag_ms)
    return rule.judge(leader.ledger.samples)


def summarize_run(leader: "Leader") -> dict[str, Any]:
    """The figures of `summary.json`."""
    assert leader.preparation is not None
    tally = leader.ledger.tally
    saturation = judge_client(leader)
    diversity = None
    if leader.directory is not None:
        diversity = emitted_diversity(leader.directory.requests.path, leader.stats_reset_s)
    summary = summarize(
        tally,
        duration_s=(tally.last_end_s or 0.0) - (tally.first_sent_s or 0.0),
        diversity=diversity,
        server=_server(leader.server.samples),
        client_saturated=saturation.saturated,
        client_saturated_reason=saturation.reason,
    )
    lost_workers = leader.roll.lost if leader.roll is not None else 0
    return summary | {"stats_reset_s": leader.stats_reset_s, "lost_workers": lost_workers}


def _server(samples: list[ServerSample]) -> dict[str, Any] | None:
    if len(samples) < 2:
        return None
    return dict(server_figures(samples[0], samples[-1], samples[1:-1]))
