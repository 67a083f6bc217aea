"""A gate on one run by itself: `ttft_ms.p95<=500, errors<=0.1%, goodput>=99%`."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

from loadgen.compare.gate import CONFIDENCE, Limit, Outcome, junit, parse_gate
from loadgen.compare.metrics import figure, share_ends
from loadgen.errors import UsageError
from loadgen.stats.sketch import Sketch
from loadgen.stats.tally import Tally

if TYPE_CHECKING:  # numpy with it, and a run must start fast
    from loadgen.runs.columns import Floats

SUITE = "kvswarm run"
ERRORS = "errors"
SATURATION = "the client was saturated"
OBJECTIVE = ("goodput_share", "goodput_per_s")
ROUNDING = 1e-9
"""Part of a bound by which binary fractions may miss it: 7 of 1,000 keep 0.7 %."""
ReadColumn = Callable[[str], "Floats"]
"""The values of a column of the requests that count."""


def parse_run_gate(
    text: str, has_objective: bool, is_batched: bool, needs_proof: bool = False
) -> tuple[Limit, ...]:
    """Limits on a run alone. Raises UsageError for those that no such run could tell, or prove."""
    try:
        limits = parse_gate(text)
    except UsageError as error:
        said = str(error).replace("<=+10%", "<=500")
        raise UsageError(said if said.startswith("--gate") else f"--gate: {said}") from None
    for limit in limits:
        if told := _refusal(limit, has_objective, is_batched, needs_proof):
            raise UsageError(f"--gate: {limit.text} {told}")
    return limits


def _refusal(limit: Limit, has_objective: bool, is_batched: bool, needs_proof: bool) -> str:
    metric = limit.statistic.metric
    if limit.kind != "value":
        return "is of a change, which needs a base: use `kvswarm compare BASE NEW --gate` for it"
    if metric.name in OBJECTIVE and not has_objective:
        return "needs an objective of requests: give --slo, as ttft_ms<=500"
    if metric.source == "locust":
        return "is in Locust's own files alone: limit e2e_ms"
    if metric.source == "batch" and not is_batched:
        return "is of batches, which this locustfile does not send"
    if needs_proof and not metric.is_proportion:
        return "has no interval in one run: prove shares alone, or use `kvswarm compare`"
    return ""


@dataclass(frozen=True, slots=True)
class LimitFinding:
    """What a run has of a limit; `samples` are the values it is of, None where these are no
    requests. `reason` says why it is not met where the value does not. Of a share of requests
    `possible` is the end of its interval towards the limit, which keeps it where `needs_proof`."""

    limit: Limit
    value: float | None
    samples: int | None = None
    reason: str = ""
    possible: float | None = None
    needs_proof: bool = False

    @property
    def is_met(self) -> bool:
        """A limit on what is not known is not met."""
        return self._keeps(self.possible if self.needs_proof else self.value)

    def _keeps(self, value: float | None) -> bool:
        bound = self.limit.bound
        if value is None or math.isnan(value):
            return False
        near = math.isclose(value, bound, rel_tol=ROUNDING)
        return near or (value < bound if self.limit.at_most else value > bound)

    @property
    def found(self) -> str:
        """The value with its samples, or why there is none."""
        if self.value is None:
            return self.reason
        shown = figure(self.limit.statistic, self.value)
        if not self._keeps(self.value) and shown == figure(self.limit.statistic, self.limit.bound):
            shown += " (beyond it by less than is shown)"
        if self.samples is None:
            return shown
        if self.possible is not None and self.value is not None:
            seen = f"{round(self.value * self.samples):,} of {self.samples:,}"
            way = "up" if self.limit.at_most else "down"
            end = figure(self.limit.statistic, float(f"{self.possible:.2g}"))
            said = "no proof, " if self._keeps(self.value) and not self.is_met else ""
            return f"{shown} ({said}{seen}: {way} to {end} is possible)"
        return f"{shown} (n={self.samples:,})"

    def to_json(self) -> dict[str, Any]:
        """Shares as fractions, as everywhere in a summary."""
        return {
            "limit": self.limit.text,
            "metric": self.limit.statistic.name,
            "bound": self.limit.bound,
            "value": self.value,
            "samples": self.samples,
            "met": self.is_met,
            "found": self.found,
        }


@dataclass(frozen=True, slots=True)
class RunGate:
    """All limits of a run. `faults` are why it decides nothing, whatever its figures are."""

    findings: tuple[LimitFinding, ...]
    faults: tuple[str, ...] = ()

    @property
    def broken(self) -> int:
        """How many limits are not met."""
        return sum(not each.is_met for each in self.findings)

    @property
    def is_met(self) -> bool:
        """Whether the run passes."""
        return not self.broken and not self.faults

    @property
    def fails_run(self) -> bool:
        """Whether it fails the run. A client that was saturated has an exit code of its own."""
        others = [each for each in self.faults if not each.startswith(SATURATION)]
        return bool(self.broken or others)

    @property
    def verdict(self) -> str:
        """In a line."""
        kept = len(self.findings) - self.broken
        line = f"gate {'passed' if self.is_met else 'FAILED'}: {kept} of {len(self.findings)} met"
        return f"{line}, but {'; '.join(self.faults)}" if self.faults else line

    def to_json(self) -> dict[str, Any]:
        """What `summary.json` has of it."""
        return {
            "met": self.is_met,
            "verdict": self.verdict,
            "faults": list(self.faults),
            "limits": [each.to_json() for each in self.findings],
        }


def gate_lines(told: dict[str, Any] | None) -> list[str]:
    """The verdict and a line for each limit with a tick or a cross, of `gate` of a summary."""
    if told is None:
        return []
    width = max(len(each["limit"]) for each in told["limits"])
    return [
        told["verdict"],
        *(
            f"  {'✓' if each['met'] else '✗'} {each['limit']:{width}}  {each['found']}"
            for each in told["limits"]
        ),
    ]


def judge_run(
    limits: Sequence[Limit],
    tally: Tally,
    duration_s: float,
    column: ReadColumn | None,
    faults: Sequence[str] = (),
    needs_proof: bool = False,
) -> RunGate:
    """Hold a run against its gate. `column` reads what the tally does not count, None where no
    requests were kept. Intervals of shares hold together with `CONFIDENCE`, as if each request were
    independent of the others."""
    shares = {each.statistic for each in limits if each.statistic.metric.is_proportion}
    z = NormalDist().inv_cdf(1 - (1 - CONFIDENCE) / 2 / max(1, len(shares)))
    findings = (_finding(limit, tally, duration_s, column, z) for limit in limits)
    proven = tuple(replace(each, needs_proof=needs_proof) for each in findings)
    return RunGate(proven, tuple(faults))


def _finding(
    limit: Limit, tally: Tally, duration_s: float, column: ReadColumn | None, z: float
) -> LimitFinding:
    metric = limit.statistic.metric
    if metric.form != "values":
        value = tally.figure(metric.name, duration_s) if tally.finished else None
        whole = tally.counts.get(metric.whole) if metric.is_proportion else None
        samples = None if whole is None else round(whole)
        possible = None
        if value is not None and samples:
            possible = share_ends(value, samples, z)[limit.at_most]
        return LimitFinding(limit, value, samples, f"not known: {_lack(limit, tally)}", possible)
    value, samples = _statistic(limit, tally, column)
    lack, least = _lack(limit, tally), limit.statistic.least_values
    if value is not None and samples < least:
        value = None
        lack = f"n={samples:,}: too few for a {limit.statistic.of_values}, which needs {least:,}"
    return LimitFinding(limit, value, samples, f"not known: {lack}")


def _statistic(limit: Limit, tally: Tally, column: ReadColumn | None) -> tuple[float | None, int]:
    statistic, quantile = limit.statistic, limit.statistic.quantile
    sketch = tally.sketches.get(statistic.metric.name)
    if sketch is not None:
        untold = tally.untold(statistic.metric.name) if limit.at_most else 0
        return _of_sketch(sketch, quantile, untold), sketch.count
    from numpy import isnan
    from numpy import quantile as quantile_of

    if column is None:
        return None, 0
    values = column(statistic.metric.column)
    values = values[~isnan(values)]
    if not len(values):
        return None, 0
    return float(values.mean() if quantile is None else quantile_of(values, quantile)), len(values)


def _of_sketch(sketch: Sketch, quantile: float | None, untold: int) -> float | None:
    """A percentile, None: the mean. Values that nobody knows may be beyond any limit."""
    if quantile is None:
        return None if untold else sketch.mean
    if not untold:
        return sketch.quantile(quantile)
    rank, last = quantile * (sketch.count + untold - 1), sketch.count - 1
    return sketch.quantile(rank / max(last, 1)) if rank <= last else None


def _lack(limit: Limit, tally: Tally) -> str:
    name = limit.statistic.metric.name
    if not tally.finished:
        return "no request was finished"
    if name in OBJECTIVE:
        return "no request was held against the objective"
    if untold := tally.untold(name):
        return f"{untold:,} of {tally.ok:,} replies that are ok have no {name}"
    return f"no {name} in {tally.finished:,} requests, {tally.ok:,} of them ok"


def to_junit(gate: RunGate) -> str:
    """A limit that is not met is broken, or undecided where its figure is not known or the run
    decides nothing, as of `kvswarm compare`."""
    cases = [
        (each.limit.text, _outcome(each, gate), "; ".join((each.found, *gate.faults)))
        for each in gate.findings
    ]
    return junit(SUITE, cases)


def _outcome(finding: LimitFinding, gate: RunGate) -> Outcome:
    if gate.faults or finding.value is None:
        return "undecided"
    return "passed" if finding.is_met else "broken"
