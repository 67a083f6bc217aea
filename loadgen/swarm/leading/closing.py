"""The end of a run: summary, last words in `run.json`, what the terminal says, the exit code."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from loadgen.compare.run import faults_of
from loadgen.compare.run_gate import ERRORS, RunGate, judge_run, to_junit
from loadgen.runs.columns import Columns
from loadgen.runs.exit_code import DONE, UNRECORDED, exit_code
from loadgen.runs.replicas import engine_deaths, replica_figures
from loadgen.runs.requests import CONTEXTS, Requests, read_requests
from loadgen.stats.counts import Counts
from loadgen.stats.steady_state import COLUMNS, SteadyState
from loadgen.stats.summary import summarize, write_summary
from loadgen.swarm.sending.request_sender import CUT_OFF_RETRIEVAL
from loadgen.workload.diversity import measure_diversity

if TYPE_CHECKING:  # they bring Locust, which patches the process
    from loadgen.swarm.leading.preparation import Preparation
    from loadgen.swarm.leading.swarm_run import SwarmRun
    from loadgen.swarm.showing.view import View

JUNIT_XML = "junit.xml"


def close_run(run: "SwarmRun", view: "View") -> None:
    """Write the summary into the run directory, decide on the exit code and say both."""
    run.ledger.flush()
    if run.directory is not None:
        run.directory.close()
    rows = _rows(run)
    summary = summarize_run(run, rows)
    user_errors = sum(row["count"] for row in run.environment.runner.exceptions.values())
    run.gate = _gate(run, summary, rows, user_errors)
    if run.gate is not None:
        summary["gate"] = run.gate.to_json()
    if run.directory is not None:
        with run.directory.writing():
            write_summary(run.directory.path, summary)
            if run.gate is not None:
                (run.directory.path / JUNIT_XML).write_text(to_junit(run.gate), encoding="utf-8")
    run.exit_code = exit_code(
        summary,
        host_died=run.host_died,
        max_failures_percent=_allowed_percent(run.preparation),
        lost_workers=summary["lost_workers"],
        user_errors=user_errors,
        unrecorded=run.fault is not None,
        gate_is_met=run.gate is None or not run.gate.fails_run,
    )
    if run.directory is not None:
        ended = {"host_died": run.host_died, "interrupted": run.interrupted}
        told = {"token_clock": summary["token_times"]["clock"], "user_errors": user_errors}
        run.directory.describe({"exit_code": run.exit_code, **told, **ended})
        if run.fault is not None:
            run.exit_code = UNRECORDED
    view.report(run, summary, _still_waiting(run, rows))


def _rows(run: "SwarmRun") -> Columns | None:
    """What the run kept of its requests, read once: it may have millions of them."""
    if run.directory is None or run.fault is not None:
        return None
    found = () if run.preparation.rag is None else (*CONTEXTS, "error")
    limited = [limit.statistic.metric.column for limit in run.preparation.gate]
    wanted = dict.fromkeys((*COLUMNS, "context_id", "engine", *found, *filter(None, limited)))
    return read_requests(run.directory.requests.path, tuple(wanted))


def _gate(
    run: "SwarmRun", summary: Mapping[str, Any], rows: Columns | None, user_errors: int
) -> RunGate | None:
    """What became of the gate, None without one."""
    ready, requests = run.preparation, _counted(run, rows)
    if not ready.gate:
        return None
    told = {"exit_code": DONE, "user_errors": user_errors, "options": ready.raw_options}
    ended = {"host_died": run.host_died, "interrupted": run.interrupted}
    return judge_run(
        ready.gate,
        run.ledger.counts.counted,
        summary["duration_s"],
        None if requests is None else requests.latency,
        [*map(str, faults_of(told | ended, summary)), *_failures(ready, summary)],
        needs_proof=ready.options.require_proof,
    )


def _failures(ready: "Preparation", summary: Mapping[str, Any]) -> Iterator[str]:
    """What fails the run beside its gate."""
    finished = summary["requests"] - summary["outcomes"].get("cancelled", 0)
    if finished and not summary["outcomes"]["ok"]:
        yield "no request ended ok"
    elif finished and 100 * summary["failed"] / finished > _allowed_percent(ready):
        most = f"--max-failures {ready.options.max_failures_percent:g}"
        yield f"{summary['failed']:,} requests failed, more than {most} (or limit errors)"


def _allowed_percent(ready: "Preparation") -> float:
    """A limit on errors stands in the place of `--max-failures`."""
    is_limited = any(each.at_most and each.statistic.name == ERRORS for each in ready.gate)
    return 100.0 if is_limited else ready.options.max_failures_percent


def _still_waiting(run: "SwarmRun", rows: Columns | None) -> int:
    """Requests that a RAG service which stopped answering has left."""
    if rows is None or run.preparation.rag is None:
        return 0
    errors = rows.text("error")
    left = [name for name in errors.names if name.startswith(CUT_OFF_RETRIEVAL)]
    return int(errors.among(*left).sum())


def summarize_run(run: "SwarmRun", rows: Columns | None = None) -> dict[str, Any]:
    """The figures of `summary.json`; `rows` are those of `requests.csv`."""
    counts = run.ledger.counts
    requests = _counted(run, rows)
    steady_state = _steady_state(run, requests)
    is_found = counts.warmup_s is None
    if is_found and steady_state is not None and steady_state.early:
        counts.leave_out(steady_state.from_s)
        requests = _counted(run, rows)
        steady_state = _steady_state(run, requests)
    tally = counts.counted
    saturation, counted = run.ledger.clients.verdict(), run.server.counted
    diversity = None if requests is None else asdict(measure_diversity(requests.emitted()))
    summary = summarize(
        tally,
        duration_s=(tally.last_end_s or 0.0) - (tally.first_sent_s or 0.0),
        diversity=diversity,
        server=counted.figures() if counted.count >= 2 else None,
        client_saturated=saturation.saturated,
        client_saturated_reason=saturation.reason,
    )
    lost = (run.workers.lost, run.workers.lost_share) if run.workers is not None else (0, 0.0)
    return summary | {
        "peak_concurrency": None if requests is None else requests.peak_concurrency,
        "server_note": run.server.note,
        "replicas": replica_figures(
            requests, {name: each.figures() for name, each in run.server.replicas.items()}
        ),
        "engine_deaths": _deaths(run, rows),
        "token_times": run.ledger.clients.token_times.figures(),
        "stats_reset_s": run.stats_reset_s,
        "lost_workers": lost[0],
        "lost_share": lost[1],
        "warmup": _left_out(counts, is_given=not is_found),
        "steady_state": None if steady_state is None else steady_state.to_json(),
        "gate": None,
    }


def _deaths(run: "SwarmRun", rows: Columns | None) -> list[dict[str, Any]]:
    """What they cost, in the warm-up and before a reset too."""
    if not run.fleet.deaths:
        return []
    to_run_s, requests = run.clock.to_run_s, None if rows is None else Requests.of(rows)
    told = [(each.engine, to_run_s(each.at_perf_s), each.reason) for each in run.fleet.deaths]
    return engine_deaths(requests, told)


def _counted(run: "SwarmRun", rows: Columns | None) -> Requests | None:
    """The requests that count, None where they were not kept."""
    if rows is None:
        return None
    return Requests.of(rows, run.stats_reset_s, run.ledger.counts.warmup_s or 0.0)


def _steady_state(run: "SwarmRun", requests: Requests | None) -> SteadyState | None:
    if requests is None:
        return None
    ready = run.preparation
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
