"""Whether a load meets the objective, from all its runs together."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from loadgen.compare.estimate import LEAST_SAMPLES, batch_count, estimate
from loadgen.compare.gate import Limit
from loadgen.compare.interval import Interval, quantile_of_t
from loadgen.compare.series import Ratio, Series, Values
from loadgen.saturate.objective import ERRORS, GOODPUT, Objective
from loadgen.saturate.search import MOST_RUNS, Finding, Verdict
from loadgen.saturate.trial import Trial

LEVEL = 0.9
"""Of an interval with two ends: what lies wholly on one side of a limit does so by mistake once in
20 times."""
USUAL_FREEDOM = 15
"""Batches less one, of about as many requests as a 95th percentile needs."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One limit at one load. `needed` is how many requests prove it at best, 0 where any may."""

    limit: Limit
    interval: Interval | None
    samples: int
    needed: int
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Judgement:
    """`reason` says why a load was missed beside its figures, empty otherwise. `unproven` are
    limits that are met by their estimate alone, because no run of this length could prove them."""

    finding: Finding
    figures: tuple[Figure, ...]
    reason: str = ""
    unproven: tuple[Figure, ...] = ()


def judge(trials: Sequence[Trial], objective: Objective) -> Judgement:
    """All runs at one load, in the order in which they were made.

    Met where the interval of each percentile and of goodput lies within its limit; errors, as in
    `kvswarm compare --gate`, where their estimate does. Missed where one interval lies wholly
    beyond, or where the queue grew all the time in half of the runs. Undecided otherwise.
    """
    level = 1 - (1 - LEVEL) / len(objective.limits)
    figures = tuple(_figure(trials, limit, objective, level) for limit in objective.limits)
    reason = _breakdown(trials)
    reach = MOST_RUNS / len(trials)
    wanting = [each for each in figures if _wants_more(each, reach)]
    unproven = tuple(
        each for each in figures if each.verdict == "undecided" and _is_met_unproven(each, reach)
    )
    verdicts = {each.verdict for each in figures if each not in unproven}
    verdict: Verdict = "met"
    if reason or "missed" in verdicts:
        verdict = "missed"
    elif "undecided" in verdicts:
        verdict = "undecided"
    finding = Finding(
        trials[0].load, verdict, len(trials), verdict == "undecided" and bool(wanting)
    )
    return Judgement(finding, figures, reason, unproven if verdict == "met" else ())


def needed_samples(limit: Limit, level: float) -> int:
    """How many requests, all of them within, show that the limit holds: what Woodruff's and
    Wilson's intervals ask for. 0 where the number alone says nothing, as of a mean."""
    share = 1 - limit.bound if limit.statistic.metric.name == ERRORS else limit.statistic.quantile
    share = limit.bound if limit.statistic == GOODPUT else share
    if share is None:
        return 0
    t = quantile_of_t(level, USUAL_FREEDOM)
    return math.ceil(t * t * share / (1 - share)) if share < 1 else 0


def _figure(
    trials: Sequence[Trial], limit: Limit, objective: Objective, level: float
) -> Figure:
    series = _joined([trial.series(limit, objective) for trial in trials])
    needed = max(LEAST_SAMPLES, needed_samples(limit, level))
    if series.samples < LEAST_SAMPLES:
        return Figure(limit, None, series.samples, needed, "undecided")
    found = estimate(series, limit.statistic, batch_count(series.samples))
    low, high = found.bounds(quantile_of_t(level, len(found.deviations) - 1))
    interval = Interval(found.value, low, high)
    return Figure(limit, interval, series.samples, needed, _verdict(limit, interval))


def _joined(parts: Sequence[Series]) -> Series:
    """Runs one after the other, so that batches of requests show how much runs differ."""
    values = [part.value for part in parts if isinstance(part, Values)]
    if values:
        return Values(np.concatenate(values))
    ratios = [part for part in parts if isinstance(part, Ratio)]
    part, whole = (np.concatenate(each) for each in zip(*((r.part, r.whole) for r in ratios)))
    return Ratio(part, whole, sum(r.samples for r in ratios), counts=True)


def _verdict(limit: Limit, interval: Interval) -> Verdict:
    low, middle, high = (
        (interval.low, interval.estimate, interval.high)
        if limit.at_most
        else (-interval.high, -interval.estimate, -interval.low)
    )
    bound = limit.bound if limit.at_most else -limit.bound
    if low > bound:
        return "missed"
    proven = middle if limit.statistic.metric.name == ERRORS else high
    return "met" if proven <= bound else "undecided"


def _wants_more(figure: Figure, reach: float) -> bool:
    """Too few requests yet, which further runs can bring."""
    return figure.samples < figure.needed <= figure.samples * reach


def _is_met_unproven(figure: Figure, reach: float) -> bool:
    if figure.interval is None or figure.samples * reach >= figure.needed:
        return False
    estimate = figure.interval.estimate
    limit = figure.limit
    return estimate <= limit.bound if limit.at_most else estimate >= limit.bound


def _breakdown(trials: Sequence[Trial]) -> str:
    growing = [trial.backlog for trial in trials if trial.backlog and trial.backlog.is_growing]
    if 2 * len(growing) >= len(trials) and growing:
        last = growing[-1]
        return f"the queue grew to the end, by {last.growth:.0f} of {last.arrivals} requests"
    unserved = sum(trial.outcomes["unserved"] for trial in trials)
    if unserved and not any(trial.outcomes["ok"] for trial in trials):
        return f"none of {unserved} requests was served"
    return ""
