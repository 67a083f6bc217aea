"""Whether a run's figures can be trusted, check by check."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlsplit

import numpy as np

from dashboards.report.figures_of import RunFigures
from dashboards.report.run_files import ReportedRun
from dashboards.report.wording import counted, milliseconds, number, percent
from loadgen.compare.estimate import LEAST_SAMPLES
from loadgen.compare.run import faults_of
from loadgen.runs.columns import Columns
from loadgen.runs.recorded import above_0
from loadgen.stats.steady_state import SteadyState, is_notable

State = Literal["good", "doubt", "bad", "unknown", "note"]


@dataclass(frozen=True, slots=True)
class Check:
    """`doubt` is what to think of before the figures are used, `bad` what forbids it."""

    name: str
    state: State
    finding: str


MAX_LAG_MS = 100.0
LEAST_FOR_P95, LEAST_FOR_P99 = 100, 500
"""So that at least five values lie beyond the percentile."""
NOTABLE_SHARE = 0.001
"""Of tokens whose times are not their own."""
MOST_RAMP = 0.1
"""Share of the time in which users may still be added."""
MOST_TAKEN = 0.25
"""Share of a machine that a client may take from an engine beside it."""
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


def faults(run: ReportedRun) -> list[str]:
    """Why the run is invalid, empty where it is not."""
    found = [str(fault).replace(".)", ")") for fault in faults_of(run.description, run.summary)]
    return found or list(_cut_short(run))


def _cut_short(run: ReportedRun) -> Iterator[str]:
    """A run with a time that ended well before it was over, as the client's own clock tells."""
    asked_s = above_0(run.options.get("run_time"))
    if not asked_s or run.options.get("batches") or not run.client.rows:
        return
    lasted_s = np.nan_to_num(run.client.number("at_s")).max()
    if lasted_s < 0.95 * asked_s - 3:
        yield f"it was interrupted: {lasted_s:.0f} s of the {asked_s:.0f} s asked for"


def checks(run: ReportedRun, figures: RunFigures) -> list[Check]:
    """All of them, in the order of a reader's questions."""
    return [
        *_files(run, figures),
        _samples(figures),
        _failures(run, figures),
        *_ramp(run, figures),
        *steady_checks(run),
        *_client(run),
        _engine(run, figures),
        _CACHE.get(str(run.description.get("cache_state")), _UNKNOWN_CACHE),
        *(Check("note", "note", str(note)) for note in run.description.get("notes") or []),
    ]


def _files(run: ReportedRun, figures: RunFigures) -> Iterator[Check]:
    for remark in (each.remark for each in run.problems if each.remark):
        yield Check("files", "doubt", remark)
    if figures.computed:
        yield Check("files", "doubt", "without a summary, figures are computed from requests.csv")
    if run.summary.get("stats_reset_s") is not None:
        reset_s = number(run.summary["stats_reset_s"], "s")
        yield Check(
            "files", "doubt", f"statistics were reset at {reset_s}: what was before is not counted"
        )


def _samples(figures: RunFigures) -> Check:
    ok = figures.ok
    said = f"{counted(ok, 'request')} ended ok"
    if ok < LEAST_SAMPLES:
        return Check("samples", "bad", f"{said}: too few to say much (from {LEAST_SAMPLES} on)")
    if ok < LEAST_FOR_P95:
        return Check("samples", "doubt", f"{said}: under 5 beyond p95 (from {LEAST_FOR_P95} on)")
    if ok < LEAST_FOR_P99:
        return Check("samples", "doubt", f"{said}: under 5 beyond p99 (from {LEAST_FOR_P99} on)")
    return Check("samples", "good", said)


def _failures(run: ReportedRun, figures: RunFigures) -> Check:
    finished = figures.finished
    share = figures.failed / finished if finished else 0.0
    said = f"{figures.failed:,} of {finished:,} finished requests failed ({percent(share)})"
    if cut := figures.requests - finished:
        said += f"; {cut:,} were cut off or never sent"
    if late := int(run.requests.is_late.sum()):
        said += f"; {late:,} of the failed were cut off late: they had waited TTFT and E2E at least"
    if resends := run.summary.get("resends"):
        said += f"; {resends:,} were sent again, as the host had closed their connection"
    state: State = "doubt" if figures.failed or cut > 0.05 * figures.requests else "good"
    return Check("outcomes", state, said)


def _ramp(run: ReportedRun, figures: RunFigures) -> Iterator[Check]:
    """In the closed loop the load grows until the last user has come."""
    users, per_s = (above_0(run.options.get(name)) for name in ("num_users", "spawn_rate"))
    if not users or run.options.get("arrivals") != "closed":
        return
    ramp_s = (users - 1) / (per_s or 1.0) - run.warmup_s
    if ramp_s > MOST_RAMP * figures.duration_s:
        said = f"users were added for {number(ramp_s, 's')} of {number(figures.duration_s, 's')}"
        yield Check("load", "doubt", f"{said}: the figures are of a growing load (-r adds faster)")


def _client(run: ReportedRun) -> Iterator[Check]:
    if not run.client.rows:
        yield Check("client", "unknown", "the load generator's own lag was not recorded")
        return
    most_ms = above_0(run.options.get("max_lag_ms")) or MAX_LAG_MS
    yield _late(run, "event loop lag", "loop_lag_p99_ms", most_ms)
    if not np.isnan(run.client.number("send_lateness_p99_ms")).all():
        yield _late(run, "late sends", "send_lateness_p99_ms", most_ms)
    yield from _token_times(run)
    yield from _cpu(run)


def _late(run: ReportedRun, name: str, column: str, most_ms: float) -> Check:
    late_ms = run.client.number(column)
    late_ms = late_ms[~np.isnan(late_ms)]
    if not len(late_ms):
        return Check(name, "unknown", "not recorded")
    above = int((late_ms > most_ms).sum())
    worst, median = (milliseconds(float(each)) for each in (late_ms.max(), np.median(late_ms)))
    said = f"p99 of a second at worst {worst}, median {median}"
    if not above:
        return Check(name, "good", f"{said}; never above {milliseconds(most_ms)}")
    state: State = "bad" if run.summary.get("client_saturated") else "doubt"
    return Check(
        name,
        state,
        f"{said}; above {milliseconds(most_ms)} in {above:,} of {len(late_ms):,} seconds",
    )


def _token_times(run: ReportedRun) -> Iterator[Check]:
    """Whose they are; nothing of runs that did not tell."""
    times = run.summary.get("token_times") or {}
    if times.get("clock") is None:
        return
    late, shared = (times.get(name) or 0.0 for name in ("late_share", "shared_share"))
    said = f"by the {times['clock']}'s clock; {percent(shared)} are those of the token before"
    reads = {"unstamped_share": "without the kernel's time", "full_share": "of 16 KB, the most"}
    told = [(times.get(name) or 0.0, kind) for name, kind in reads.items()]
    said += "".join(f"; {percent(share)} of reads {kind}" for share, kind in told if share)
    state: State = "good"
    if late >= NOTABLE_SHARE:
        late_by = milliseconds(times["late_mean_ms"])
        said += f"; {percent(late)} are not their own: read late, by up to {late_by}"
        state = "bad" if run.summary.get("client_saturated") else "doubt"
    yield Check("times of tokens", state, said)


def _cpu(run: ReportedRun) -> Iterator[Check]:
    cores = run.client.number("cpu_share")
    cores = cores[~np.isnan(cores)]
    if not len(cores):
        return
    p95 = float(np.quantile(cores, 0.95))
    full = float((cores > 0.95).mean())
    said = f"a process of the client used {p95:.2f} of a core in its busy seconds (p95)"
    if full > 0.1:
        yield Check(
            "client CPU",
            "doubt",
            f"{said}, a full one in {percent(full)} of all: use more processes",
        )
    else:
        yield Check("client CPU", "good", said)
    yield from _shared_machine(run)


def _all_cores(client: Columns) -> float:
    """What all processes of the client used together in a busy second (p95)."""
    at_s, cores = client.number("at_s"), client.number("cpu_share")
    known = ~np.isnan(at_s) & ~np.isnan(cores)
    _, second = np.unique(np.floor(at_s[known]), return_inverse=True)
    return float(np.quantile(np.bincount(second, cores[known]), 0.95)) if known.any() else 0.0


def _shared_machine(run: ReportedRun) -> Iterator[Check]:
    """Client and engine on one machine take each other's CPU."""
    cpus = (run.description.get("machine") or {}).get("cpus")
    host = urlsplit(str(run.description.get("host") or "")).hostname
    if host not in _LOOPBACK or not isinstance(cpus, int):
        return
    taken = _all_cores(run.client) / max(cpus, 1)
    said = f"engine and client share {counted(cpus, 'CPU')}; the client took {percent(taken)}"
    if taken > MOST_TAKEN:
        yield Check("engine CPU", "doubt", f"{said}, which the engine may have lacked")
    else:
        yield Check("engine CPU", "good", said)


def _engine(run: ReportedRun, figures: RunFigures) -> Check:
    if run.server_series is None or run.server_series.known("prompt_tokens") is None:
        note = run.summary.get("server_note") or "the host tells nothing of itself"
        return Check("engine", "unknown", str(note))
    found = []
    if figures.server.get("counter_reset"):
        found.append("its counters went down on the way: it was restarted")
    if run.unreachable_s:
        found.append(f"it did not answer in {counted(run.unreachable_s, 'second')}")
    if found:
        return Check("engine", "doubt", "; ".join(found))
    preempted = figures.server.get("num_preemptions")
    said = f"; it set back {number(preempted)} requests for want of KV cache" if preempted else ""
    return Check("engine", "good", f"it answered in every second{said}")


_CACHE: dict[str, Check] = {
    "cold": Check("caches", "good", "empty at the start"),
    "simulated": Check("simulated", "doubt", "no server answered: `kvswarm simulate` made it"),
    "warm": Check("caches", "doubt", "kept from an earlier swarm (--keep-cache)"),
}
_UNKNOWN_CACHE = Check("caches", "unknown", "what they held at the start is not known")


def steady_checks(run: ReportedRun) -> Iterator[Check]:
    """Whether the figures are those of a steady state."""
    if run.warmup_s:
        yield Check("warm-up", "note", _left_out(run))
    if run.steady_state is not None:
        yield _state(run.steady_state)


def _left_out(run: ReportedRun) -> str:
    told = run.summary.get("warmup") or {}
    requests = told.get("requests")
    said = "" if requests is None else f", {counted(requests, 'request')}"
    failed = f", of which {told['failed']:,} failed" if told.get("failed") else ""
    server = "; what the server counted is of the whole run" if told.get("given") is False else ""
    return f"the first {number(run.warmup_s, 's')} are left out (--warmup){said}{failed}{server}"


def _state(steady: SteadyState) -> Check:
    if steady.settled is None:
        return Check("steady state", "unknown", "too few requests to tell")
    if not steady.settled:
        said = "it never settled: time to first token drifted, also behind any warm-up"
        return Check("steady state", "doubt", said)
    if not is_notable(steady.to_json()):
        return Check("steady state", "good", "time to first token did not drift")
    said = (
        f"{counted(steady.early, 'request')} of the first {number(steady.from_s, 's')} are a"
        f" warm-up that moves the mean time to first token by {percent(steady.shift)}, and count"
    )
    return Check("steady state", "doubt", f"{said} (--warmup leaves them out)")
