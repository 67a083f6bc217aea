"""The directory of a search: what it is, its trials, its table and its result."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np

from loadgen.compare.gate import Limit
from loadgen.compare.interval import Interval
from loadgen.errors import UsageError
from loadgen.runs.csv_log import to_csv
from loadgen.runs.directory import check_directory
from loadgen.runs.json_file import malformed, read_object, write_json
from loadgen.runs.machine import machine, versions, without_secrets
from loadgen.saturate.judge import LoadJudgement
from loadgen.saturate.objective import Objective
from loadgen.saturate.search_state import Ending, SearchPlan, SearchState, TrialStep
from loadgen.saturate.trial import Trial
from loadgen.scratch import write_whole
from loadgen.stats.metrics import limited
from loadgen.stats.sketch import least_values
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


def points_of(state: SearchState) -> list[Point]:
    """In the order in which they were made."""
    return [_point(state, step, trial) for step, trial in state.trials]


def request_limits(objective: Objective) -> Slo | None:
    """What a request must keep to count as good: its own limits, or those of all latencies."""
    if objective.request is not None:
        return objective.request
    limits = {  # of several on a column the widest
        limit.statistic.metric.column: limit.bound
        for limit in sorted(objective.limits, key=lambda limit: limit.bound)
        if limit.statistic.of_values and limit.statistic.metric.column in limited()
    }
    return Slo(tuple(limits.items())) if limits else None


def _point(state: SearchState, step: TrialStep, trial: Trial) -> Point:
    objective = state.plan.objective
    column = objective.latency.statistic.metric.column if objective.latency else USUAL_COLUMN
    p50_ms, p95_ms, p99_ms = _percentiles(trial, column, objective.latency)
    slo = request_limits(objective)
    goodput = trial.goodput(slo) if slo else None
    seconds, outcomes = step.seconds - trial.warm_up_s, trial.outcomes
    judgement, backlog = state.judgements[step.load], trial.backlog
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


def _percentiles(trial: Trial, column: str, limit: Limit | None) -> list[float | None]:
    """Of what the limit is judged by: with what was cut off beyond it. None of too few values."""
    values = trial.values(column) if limit is None else trial.latency(column, limit.bound).value
    return [
        float(np.quantile(values, q)) if len(values) >= least_values(q) else None
        for q in (0.5, 0.95, 0.99)
    ]


SATURATE_JSON, TRIAL_JSON = "saturate.json", "trial.json"
TRIALS, TRIALS_CSV = "trials", "trials.csv"


@dataclass(frozen=True, slots=True)
class SearchFolder:
    """`path` need not exist. `place` is the host or the target, whoever named it; `heard` is all
    else that is said of the load."""

    path: Path
    place: str = ""
    heard: Mapping[str, str] = field(default_factory=dict)

    def check(self, plan: SearchPlan) -> None:
        """Raise UsageError where something else is kept, or nothing can be written."""
        check_directory(self.path, SATURATE_JSON)
        kept = read_object(self.path / SATURATE_JSON)
        if not kept and (self.path / TRIALS).exists():
            raise malformed(self.path / SATURATE_JSON, "it is missing beside trials")
        difference = _difference(kept.get("definition"), self._definition(plan))
        known = kept.get("heard") or {}
        now = {name: value for name, value in self.heard.items() if name in known}
        difference = difference or _difference(known, now)
        if self.finished and difference:
            raise UsageError(f"{self.path} holds another search ({difference}): give another --out")

    def open(self, plan: SearchPlan) -> None:
        """Note what is being looked for."""
        self.path.mkdir(parents=True, exist_ok=True)
        if not self.finished:
            content = {"definition": self._definition(plan), "heard": dict(self.heard)}
            write_json(self.path / SATURATE_JSON, content)
        (self.path / TRIALS).mkdir(exist_ok=True)  # last: trials without the search are refused

    @property
    def finished(self) -> list[tuple[TrialStep, Path]]:
        """Trials that came to their end, in the order in which they were made."""
        notes = sorted((self.path / TRIALS).glob(f"*/{TRIAL_JSON}"))
        found = [(_step(note), note.parent) for note in notes]
        return sorted(found, key=lambda each: each[0].number)

    @property
    def next_number(self) -> int:
        """One that no folder has yet, not even one that did not come to its end."""
        numbers = [run.name.partition("-")[0] for run in (self.path / TRIALS).glob("*-*")]
        return 1 + max((int(each) for each in numbers if each.isdecimal()), default=0)

    def run(self, step: TrialStep) -> Path:
        """Where the run of a step is or will be."""
        return self.path / TRIALS / step.name

    def note(self, step: TrialStep) -> None:
        """The trial came to its end."""
        write_json(self.run(step) / TRIAL_JSON, asdict(step))

    def _definition(self, plan: SearchPlan) -> dict[str, Any]:
        """What tells one search from another; values of headers are hidden."""
        return {**plan.as_json, "command": without_secrets(plan.words), "place": self.place}

    def write_table(self, state: SearchState) -> None:
        """`trials.csv`, replaced in one step."""
        names = [each.name for each in fields(Point)]
        rows = ([getattr(point, name) for name in names] for point in points_of(state))
        write_whole(self.path / TRIALS_CSV, to_csv([names, *rows]).encode())

    def write_result(self, state: SearchState, ending: Ending, said: Sequence[str]) -> None:
        """`saturate.json`."""
        bracket = state.bracket
        content = {
            "definition": self._definition(state.plan),
            "heard": dict(self.heard),
            "result": {
                "by": state.plan.space.by,
                "met": bracket.below.load if bracket.below else None,
                "not_met": bracket.above.load if bracket.above else None,
                "ending": ending,
                "said": list(said),
            },
            "loads": [_load(load, each) for load, each in state.ordered.items()],
            "versions": versions(),
            "machine": machine(),
        }
        write_json(self.path / SATURATE_JSON, content)


def _difference(kept: Any, wanted: Mapping[str, Any]) -> str:
    kept = kept if isinstance(kept, dict) else {}
    return next(
        (
            f"{name} was {kept.get(name)}, is {value}"
            for name, value in wanted.items()
            if kept.get(name) != value
        ),
        "",
    )


def _step(note: Path) -> TrialStep:
    found = read_object(note)
    for each in fields(TrialStep):
        if not isinstance(found.get(each.name), int | float):
            raise malformed(note, f"{each.name} is {found.get(each.name)!r}")
    return TrialStep(**{each.name: found[each.name] for each in fields(TrialStep)})


def _load(load: float, judgement: LoadJudgement) -> dict[str, Any]:
    return {
        "load": load,
        "verdict": judgement.finding.verdict,
        "runs": judgement.finding.runs,
        "reason": judgement.reason,
        "unproven": [each.limit.text for each in judgement.unproven],
        "limits": [
            {
                "limit": each.limit.text,
                "requests": each.samples,
                **_ends(each.interval),
                "within": _ends(each.within),
            }
            for each in judgement.figures
        ],
    }


def _ends(interval: Interval | None) -> dict[str, float | None]:
    return interval.to_json() if interval else {"estimate": None, "low": None, "high": None}
