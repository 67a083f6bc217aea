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
"""Of an interval with two ends. One judgement takes a load exactly at its limit for one below it in
1 of 20 cases, and for one beyond it in as many; a search makes several."""
USUAL_FREEDOM = 15
"""Batches less one, of about as many requests as a 95th percentile needs."""


@dataclass(frozen=True, slots=True)
class LimitFigure:
    """One limit at one load: `interval` is in the metric's unit, `within` the share of requests
    within the limit of a percentile. `needed` is how many requests prove it at best."""

    limit: Limit
    interval: Interval | None
    within: Interval | None
    samples: int
    needed: int
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class LoadJudgement:
    """`reason` says why a load was missed beside its figures, empty otherwise. `unproven` are
    limits that are met by their estimate alone, because no run of this length could prove them."""

    finding: Finding
    figures: tuple[LimitFigure, ...]
    reason: str = ""
    unproven: tuple[LimitFigure, ...] = ()


def judge(trials: Sequence[Trial], objective: Objective) -> LoadJudgement:
    """All runs at one load, in the order in which they were made.

    A percentile is decided by the share of requests within its limit, p95 by whether that is 95 %.
    Met where each interval lies on the right side of its limit; errors, as in `kvswarm compare
    --gate`, where their estimate does. Missed where one interval lies wholly
    beyond, or where the queue grew all the time in half of the runs. Undecided otherwise.
    """
    level = 1 - (1 - LEVEL) / len(objective.limits)
    figures = tuple(_figure(trials, limit, objective, level) for limit in objective.limits)
    reason = _breakdown(trials)
    reach = MOST_RUNS / len(trials)
    # Too few requests yet, which further runs can bring.
    wanting = [each for each in figures if each.samples < each.needed <= each.samples * reach]
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
    return LoadJudgement(finding, figures, reason, unproven if verdict == "met" else ())


def needed_samples(limit: Limit, level: float) -> int:
    """How many requests, all of them within, show that the limit holds: what Woodruff's and
    Wilson's intervals ask for, and no less than any interval does."""
    share = 1 - limit.bound if limit.statistic.metric.name == ERRORS else limit.statistic.quantile
    share = limit.bound if limit.statistic == GOODPUT else share
    if share is None or share >= 1:
        return LEAST_SAMPLES
    t = quantile_of_t(level, USUAL_FREEDOM)
    return max(LEAST_SAMPLES, math.ceil(t * t * share / (1 - share)))


def _figure(
    trials: Sequence[Trial], limit: Limit, objective: Objective, level: float
) -> LimitFigure:
    runs = [trial.series(limit, objective) for trial in trials]
    series = _joined(runs)
    needed = needed_samples(limit, level)
    if series.samples < LEAST_SAMPLES:
        return LimitFigure(limit, None, None, series.samples, needed, "undecided")
    interval, within = _interval(runs, limit, level), None
    if limit.statistic.quantile is not None:
        within = _interval([_within(run, limit) for run in runs], limit, level)
    verdict = _verdict(limit, interval, within)
    return LimitFigure(limit, interval, within, series.samples, needed, verdict)


def _interval(runs: Sequence[Series], limit: Limit, level: float) -> Interval:
    """Of all requests together, by the spread of batches of them, but not narrower than the
    standard error of the runs' own figures has it: runs differ by more than batches of one show.
    Its factor is that of the batches, as two or three runs alone would decide nothing."""
    series = _joined(runs)
    found = estimate(series, limit.statistic, batch_count(series.samples))
    t = quantile_of_t(level, len(found.deviations) - 1)
    interval = Interval(found.value, *found.bounds(t))
    own = [estimate(run, limit.statistic, 1).value for run in runs if run.samples]
    if len(own) < 2:
        return interval
    half = t * float(np.std(own, ddof=1)) / math.sqrt(len(own))
    wide = interval.widened(Interval(found.value, found.value - half, found.value + half))
    is_share = isinstance(series, Ratio)
    return wide.through(lambda each: min(max(each, 0.0), 1.0)) if is_share else wide


def _within(run: Series, limit: Limit) -> Ratio:
    """Which requests were within a limit on a percentile."""
    assert isinstance(run, Values)
    kept = (run.value <= limit.bound).astype(np.float64)
    return Ratio(kept, np.ones_like(kept), len(kept), counts=True)


def _joined(parts: Sequence[Series]) -> Series:
    """Runs one after the other."""
    values = [part.value for part in parts if isinstance(part, Values)]
    if values:
        return Values(np.concatenate(values))
    ratios = [part for part in parts if isinstance(part, Ratio)]
    part, whole = (np.concatenate([getattr(r, name) for r in ratios]) for name in ("part", "whole"))
    return Ratio(part, whole, len(part), counts=True)


def _verdict(limit: Limit, interval: Interval, within: Interval | None) -> Verdict:
    margin = _margin(limit, interval, within)
    if margin.high < 0:
        return "missed"
    proven = margin.estimate if limit.statistic.metric.name == ERRORS else margin.low
    return "met" if proven >= 0 else "undecided"


def _margin(limit: Limit, interval: Interval, within: Interval | None) -> Interval:
    """How far inside its limit a figure is, negative beyond it."""
    if within is not None:
        share = limit.statistic.quantile or 0.0
        return within.through(lambda each: each - share)
    if not limit.at_most:
        return interval.through(lambda each: each - limit.bound)
    ends = interval.estimate, interval.high, interval.low
    return Interval(*(limit.bound - each for each in ends))


def _is_met_unproven(figure: LimitFigure, reach: float) -> bool:
    if figure.interval is None or figure.samples * reach >= figure.needed:
        return False
    return _margin(figure.limit, figure.interval, figure.within).estimate >= 0


def _breakdown(trials: Sequence[Trial]) -> str:
    growing = [trial.backlog for trial in trials if trial.backlog and trial.backlog.is_growing]
    if 2 * len(growing) >= len(trials) and growing:
        last = growing[-1]
        return f"the queue grew to the end, by {last.growth:.0f} of {last.arrivals} requests"
    unserved = sum(trial.outcomes["unserved"] for trial in trials)
    if unserved and not any(trial.outcomes["ok"] for trial in trials):
        return f"none of {unserved} requests was served"
    return ""
