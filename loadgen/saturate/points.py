"""The trials as rows of a table, and as points of a picture."""

from dataclasses import dataclass

import numpy as np

from loadgen.saturate.course import Course, Step
from loadgen.saturate.objective import Objective
from loadgen.saturate.trial import Trial
from loadgen.stats.metrics import limited
from loadgen.stats.slo import Slo

USUAL_COLUMN = "ttft_ms"


@dataclass(frozen=True, slots=True)
class Point:
    """One trial, its warm-up left out. `load` is requests a second or users; `offered_per_s` and
    `ok_per_s` count what was due; `p50_ms`, `p95_ms`, `p99_ms` are of `metric`. `goodput` is the
    share of requests within the limits of single requests, or of latency where there are none.
    `verdict` is of all runs at this load together."""

    trial: int
    load: float
    repeat: int
    seed: int
    seconds: float
    warm_up_s: float
    settled: bool | None
    arrivals: int
    ok: int
    failed: int
    unserved: int
    offered_per_s: float
    ok_per_s: float
    metric: str
    p50_ms: float | None
    p95_ms: float | None
    p99_ms: float | None
    goodput: float | None
    goodput_per_s: float | None
    backlog_growth: float | None
    verdict: str
    reason: str
    run: str


def points_of(course: Course) -> list[Point]:
    """In the order in which they were made."""
    return [_point(course, step, trial) for step, trial in course.trials]


def request_limits(objective: Objective) -> Slo | None:
    """What a request must keep to count as good: its own limits, or those of all latencies."""
    if objective.request is not None:
        return objective.request
    limits = {
        limit.statistic.metric.column: limit.bound
        for limit in objective.limits
        if limit.statistic.of_values and limit.statistic.metric.column in limited()
    }
    return Slo(tuple(limits.items())) if limits else None


def _point(course: Course, step: Step, trial: Trial) -> Point:
    objective = course.plan.objective
    column = objective.latency.statistic.metric.column if objective.latency else USUAL_COLUMN
    p50_ms, p95_ms, p99_ms = _percentiles(trial, column)
    slo = request_limits(objective)
    goodput = trial.goodput(slo) if slo else None
    seconds, outcomes = step.seconds - trial.warm_up_s, trial.outcomes
    judgement, backlog = course.judgements[step.load], trial.backlog
    return Point(
        trial=step.number,
        load=step.load,
        repeat=step.repeat,
        seed=step.seed,
        seconds=step.seconds,
        warm_up_s=trial.warm_up_s,
        settled=trial.settled,
        **outcomes,
        offered_per_s=outcomes["arrivals"] / seconds,
        ok_per_s=outcomes["ok"] / seconds,
        metric=column,
        p50_ms=p50_ms,
        p95_ms=p95_ms,
        p99_ms=p99_ms,
        goodput=goodput,
        goodput_per_s=None if goodput is None else goodput * outcomes["arrivals"] / seconds,
        backlog_growth=backlog.growth if backlog else None,
        verdict=judgement.finding.verdict,
        reason=judgement.reason,
        run=f"trials/{step.name}",
    )


def _percentiles(trial: Trial, column: str) -> list[float | None]:
    values = trial.values(column)
    if not len(values):
        return [None, None, None]
    return [float(each) for each in np.quantile(values, (0.5, 0.95, 0.99))]
