"""Whether a comparison keeps the limits of a gate, and what size of change it could see."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from loadgen.compare.estimate import LEAST_BATCHES, LEAST_SAMPLES
from loadgen.compare.gate import BROKEN, PASSED, UNDECIDED, Limit, Outcome
from loadgen.compare.interval import Interval
from loadgen.compare.metrics import Statistic
from loadgen.compare.sides import Sides, exponential, scale_of

USUAL_SPREAD = 0.025
"""Of identical runs on a quiet machine: what one run on each side is held against where nothing
tells the machine's own."""
MOST_HIDDEN, MOST_HIDDEN_SHARE = math.log(1.25), 0.1
"""How far beyond a limit an interval may reach that passes it: 25 %, of a share 10 points."""
SEEN_NINE_TIMES_OF_TEN = 1.65
"""A change of so many half intervals is seen: (1.96 + 1.28) / 1.96."""
SMALLEST_OF_INTEREST = 0.05
"""A limit of no change at all is asked about in steps of 5 %."""
MOST_SEEN = 100.0
"""What sees only larger changes, of 10,000 %, sees none."""
LEAST_REPEATS = 5
"""Fewer have so few degrees of freedom that they widen the interval of single runs."""


@dataclass(frozen=True, slots=True)
class LimitJudgement:
    """`interval` is of what the limit is about, None where there is none. `seen` is the smallest
    change that this comparison would see nine times of ten, 0.1 being 10 % or ten points; `wanted`
    that of the limit, for which runs must be `times` as long, or so many `repeats` made. Where none
    is seen, that is for seeing any; 1 time is enough as it is, None no help or not known."""

    limit: Limit
    interval: Interval | None
    outcome: Outcome
    reason: str
    seen: float | None = None
    wanted: float = 0.0
    times: int | None = None
    repeats: int | None = None


def relative_change(sides: Sides, statistic: Statistic, level: float) -> Interval | None:
    """The difference as a row shows it, with its interval; None where there is none."""
    scale = scale_of(statistic)
    interval = sides.difference(statistic, level, scale)
    if interval is None or scale == "plain":
        return interval
    return interval.through(lambda value: exponential(value) - 1)


def judge(sides: Sides, limit: Limit, level: float, needs_proof: bool = False) -> LimitJudgement:
    """A limit is broken where the whole interval lies beyond it; undecided where only the estimate
    does, where a side has too few samples or no interval, where much may lie beyond it unseen, or
    where a run has a fault. With `needs_proof` the whole interval must keep it to pass."""
    found = _of_data(sides, limit, level, needs_proof)
    faults = dict.fromkeys(fault.text for run in sides.runs for fault in run.faults)
    if not faults:
        return found
    reason = f"a run decides nothing: {'; '.join(faults)}"
    return replace(found, outcome="undecided", reason=reason)


def _of_data(sides: Sides, limit: Limit, level: float, needs_proof: bool) -> LimitJudgement:
    statistic, scale = limit.statistic, scale_of(limit.statistic)
    has_some = sides.has_data(statistic) and (
        min(sides.samples(statistic)) >= LEAST_SAMPLES or sides.paired(statistic, scale) is not None
    )
    interval = _interval(sides, limit, level) if has_some else None
    if interval is None:
        return _without_interval(sides, limit, level)
    outcome, reason = _decide(sides, limit, interval, needs_proof)
    seen = SEEN_NINE_TIMES_OF_TEN * _between(sides, limit, interval.estimate, _far(limit, interval))
    size = seen if scale == "plain" else exponential(seen) - 1
    wanted, effort = _wanted(sides, limit, interval), _for_any(sides, statistic, level)
    if size <= MOST_SEEN:
        effort = _effort(sides, math.ceil((size / wanted) ** _power(sides, limit)))
    return LimitJudgement(limit, interval, outcome, reason, size, wanted, *effort)


def _without_interval(sides: Sides, limit: Limit, level: float) -> LimitJudgement:
    """Why there is none, and what it would take."""
    if not sides.has_data(limit.statistic):
        reason = "totals alone have no interval, however long the runs: give single requests"
        return LimitJudgement(limit, None, "undecided", reason)
    if _is_of_nothing(sides, limit):
        return LimitJudgement(limit, None, "broken", "nothing of it is there in the new runs")
    if sides.is_enough(limit.statistic):
        reason = "no figure is a number of times 0, however long the runs"
        return LimitJudgement(limit, None, "undecided", reason)
    least = min(sides.samples(limit.statistic))
    reason = f"{least} usable samples, {LEAST_SAMPLES} needed"
    if least >= LEAST_SAMPLES:
        reason = f"each run needs {sides.least_of_run(limit.statistic)} usable samples"
    effort = _for_any(sides, limit.statistic, level)
    return LimitJudgement(limit, None, "undecided", reason, math.inf, 0.0, *effort)


Effort = tuple[int | None, int | None]


def _for_any(sides: Sides, statistic: Statistic, level: float) -> Effort:
    """`times` and `repeats` for an interval with two ends, which a percentile of single runs has
    where values lie beyond it. Repeats do not help where each is too short for it."""
    fewest = min(run.samples(statistic) for run in sides.runs)
    if not fewest:
        return None, None
    needed = float(LEAST_SAMPLES)
    if not sides.shows_spread:
        inside = max(statistic.quantile or 0.5, 1 - (statistic.quantile or 0.5))
        needed = max(needed, math.log((1 - level) / 2) / math.log(inside))
    times = max(needed / min(sides.samples(statistic)), sides.least_of_run(statistic) / fewest)
    if times <= 1:
        return None, None
    if fewest < max(LEAST_BATCHES, statistic.least_values):
        return math.ceil(times), None
    return _effort(sides, math.ceil(times))


def _effort(sides: Sides, factor: int) -> Effort:
    """For so many times the data. Where repeats tell how runs differ, longer ones do not help."""
    if factor <= 1:
        return 1, None
    repeats = max(LEAST_REPEATS, factor * max(len(sides.base), len(sides.new)))
    return None if sides.shows_spread else factor, repeats


def _power(sides: Sides, limit: Limit) -> int:
    """By the root of the data intervals shrink, but that of a share of nothing or all by them."""
    figures = sides.figures(limit.statistic)[1 if limit.kind == "value" else 0 :]
    is_none_or_all = all(each in (0.0, 1.0) for each in figures)
    return 1 if limit.statistic.metric.is_proportion and is_none_or_all else 2


def _is_of_nothing(sides: Sides, limit: Limit) -> bool:
    """Whether a figure of 0, which has no logarithm, is below the limit in all new runs."""
    base, new = sides.figures(limit.statistic)
    if limit.at_most or new != 0 or min(sides.samples(limit.statistic)) < LEAST_SAMPLES:
        return False
    if limit.kind == "value":
        return limit.bound > 0
    least = -1.0 if limit.kind == "relative" else -(base or 0.0)
    return bool(base) and limit.bound > least


def _interval(sides: Sides, limit: Limit, level: float) -> Interval | None:
    if limit.kind == "value":
        return sides.new_alone(limit.statistic, level)
    if limit.kind == "difference":
        return sides.difference(limit.statistic, level, "plain")
    return relative_change(sides, limit.statistic, level)


def _decide(
    sides: Sides, limit: Limit, interval: Interval, needs_proof: bool
) -> tuple[Outcome, str]:
    near, far = _near(limit, interval), _far(limit, interval)
    if _is_beyond(limit, near):
        reach = _between(sides, limit, interval.estimate, near)
        distance = _between(sides, limit, interval.estimate, limit.bound)
        spread = spread_that_explains(distance, reach, 1 if limit.kind == "value" else 2)
        if knows_spread(sides, limit.statistic) or spread >= USUAL_SPREAD:
            return "broken", "the whole interval is beyond the limit"
        reason = f"beyond the limit between {single_runs(spread)}: give repeats or a noise file"
        return "undecided", reason
    if _is_beyond(limit, interval.estimate):
        return "undecided", "the estimate is beyond the limit, its interval is not"
    if not _is_beyond(limit, far):
        return "passed", ""
    if needs_proof:
        return "undecided", "no proof: the interval reaches beyond the limit"
    most = MOST_HIDDEN_SHARE if scale_of(limit.statistic) == "plain" else MOST_HIDDEN
    if _between(sides, limit, limit.bound, far) > most:
        return "undecided", "too few data: the interval reaches far beyond the limit"
    return "passed", ""


def _near(limit: Limit, interval: Interval) -> float:
    return interval.low if limit.at_most else interval.high


def _far(limit: Limit, interval: Interval) -> float:
    return interval.high if limit.at_most else interval.low


def _is_beyond(limit: Limit, value: float) -> bool:
    return value > limit.bound if limit.at_most else value < limit.bound


def _between(sides: Sides, limit: Limit, one: float, other: float) -> float:
    """How far two values of what is limited are apart: of a share in points, else on a logarithmic
    scale."""
    if scale_of(limit.statistic) == "plain":
        return abs(other - one)
    offset = 0.0
    if limit.kind == "relative":
        offset = 1.0
    elif limit.kind == "difference":
        offset = sides.figures(limit.statistic)[0] or 0.0
    values = sorted((one + offset, other + offset))
    if values[0] <= 0 or math.isinf(values[1]):
        return 0.0 if one == other else math.inf
    return math.log(values[1] / values[0])


def _wanted(sides: Sides, limit: Limit, interval: Interval) -> float:
    """The size of change that the limit is about."""
    of = interval.estimate if limit.kind == "value" else 0.0
    size = _between(sides, limit, of, limit.bound)
    if scale_of(limit.statistic) == "log" and math.isfinite(size):
        size = math.exp(size) - 1
    return size if 0 < size < math.inf else SMALLEST_OF_INTEREST


def knows_spread(sides: Sides, statistic: Statistic) -> bool:
    """Whether anything tells how identical runs differ in it, or it is a share, for which there is
    no usual spread."""
    if sides.shows_spread or scale_of(statistic) == "plain":
        return True
    return sides.noise is not None and sides.noise.spread(statistic, "log") is not None


def spread_that_explains(distance: float, reach: float, runs: int = 2) -> float:
    """The standard deviation between identical runs with which an interval that reaches so far
    would cover that distance, all on a logarithmic scale; 0 where it does."""
    if math.isinf(distance):
        return distance
    return math.sqrt(max(0.0, distance**2 - reach**2) / runs) / 1.96


def single_runs(spread: float) -> str:
    """`single runs of a machine that differs by 2.1 %`."""
    return f"single runs of a machine that differs by {100 * spread:.2g} %"


def exit_code(judgements: Iterable[LimitJudgement]) -> int:
    """1 where a limit is broken, else 4 where one is undecided, else 0."""
    outcomes = {judgement.outcome for judgement in judgements}
    if "broken" in outcomes:
        return BROKEN
    return UNDECIDED if "undecided" in outcomes else PASSED
