"""From when on a run was steady, and its latencies from then on."""

import math
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate, pairwise
from typing import Any

from loadgen.stats.metrics import summarized
from loadgen.stats.sketch import Sketch
from loadgen.stats.summary import statistics_of

SLICES = 10
CRITICAL = 1.86
"""Of ten independent means, one series in a hundred has a larger `_bridge` (simulated, 400,000)."""
LEAST_CHANGE = 0.05
"""Of the mean, by which the later half must differ from the earlier one to be called a drift."""
LEAST_DEVIATIONS = 4.0


def drifts(values: Sequence[float]) -> bool:
    """Whether the mean moved on the way: the largest cumulative sum of deviations is beyond chance
    (Schruben 1982), and the later half differs from the earlier one by a twentieth or more."""
    means = slice_means(values)
    mean = math.fsum(means) / SLICES
    half = SLICES // 2
    change = math.fsum(means[half:]) - math.fsum(means[:half])
    if abs(change) / half <= LEAST_CHANGE * abs(mean):
        return False
    deviation = math.sqrt(_variance(means))
    return _bridge([each - mean for each in means]) > CRITICAL * deviation


def front_differs(values: Sequence[float], front: int) -> bool:
    """Whether the mean of the first `front` values is four standard errors from that of the rest,
    or more."""
    if not front:
        return False
    early, late = values[:front], values[front:]
    apart = math.fsum(early) / len(early) - math.fsum(late) / len(late)
    variance = _variance(slice_means(late)) * len(late) / SLICES
    error = math.sqrt(variance * (1 / len(early) + 1 / len(late)))
    return abs(apart) > LEAST_DEVIATIONS * error


def slice_means(values: Sequence[float]) -> list[float]:
    """Of `SLICES` slices of the same length, but for one value; at least as many values."""
    edges = [at * len(values) // SLICES for at in range(SLICES + 1)]
    return [math.fsum(values[low:high]) / (high - low) for low, high in pairwise(edges)]


def _bridge(deviations: Sequence[float]) -> float:
    return max(map(abs, accumulate(deviations))) / math.sqrt(len(deviations))


def _variance(means: Sequence[float]) -> float:
    """Of a slice's mean."""
    return math.fsum((b - a) ** 2 for a, b in pairwise(means)) / (2 * (len(means) - 1))


BATCH = 5
LEAST_BATCHES = 10
LATEST_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class Steady:
    """`warm_up` values at the front are better left out.

    `settled` is False where even so the rest may still be drifting, None where there are too few
    values to tell.
    """

    warm_up: int
    settled: bool | None


def steady_from(values: Sequence[float]) -> Steady:
    """Cut off the front of a series so that the mean of the rest is known best.

    MSER-5 (White, Simulation 69(6), 1997): of means of five neighbours the first d are left out,
    where d makes sum((x - mean)^2) / (n - d)^2 over the others smallest. A smallest value that is
    reached in the later half of the series says that it has not settled (White and Spratt 2000).
    """
    batches = _batches(values)
    if len(batches) < LEAST_BATCHES:
        return Steady(0, None)
    cut = _least_error(batches, len(batches))
    if cut > LATEST_SHARE * len(batches):
        return Steady(0, False)
    return Steady(cut * BATCH, True)


def front_of(values: Sequence[float]) -> int:
    """As many values at the front as `steady_from` would leave out, were it bound to find a warm-up
    in the first half."""
    batches = _batches(values)
    return _least_error(batches, math.floor(LATEST_SHARE * len(batches))) * BATCH


def _batches(values: Sequence[float]) -> list[float]:
    return [sum(values[at : at + BATCH]) / BATCH for at in range(0, len(values) - 4, BATCH)]


def _least_error(batches: Sequence[float], latest: int) -> int:
    """The d above, at most `latest`; from the end on, so that one pass is enough (Welford's running
    variance)."""
    mean, squares = 0.0, 0.0
    best, best_error = 0, float("inf")
    for count, value in enumerate(reversed(batches), 1):
        off = value - mean
        mean += off / count
        squares += off * (value - mean)
        # The last few are no evidence: five values that are alike by chance have no spread.
        is_evidence = count >= BATCH and len(batches) - count <= latest
        if is_evidence and squares / count**2 <= best_error:
            best, best_error = len(batches) - count, squares / count**2
    return best


LATENCIES = tuple(
    each.name
    for each in summarized()
    if each.is_usual and each.source == "request" and each.unit == "ms"
)
COLUMNS = ("scheduled_s", "end_s", *LATENCIES, "output_tokens")
"""Of `requests.csv`, that a steady state is found by and told in."""
MOST_REQUESTS = 20_000
"""A long run has millions; so many tell its 99th percentiles to a tenth of a percent of rank."""
LEAST_REQUESTS = 100
"""Fewer say nothing of a drift."""
NOTABLE = 0.05
"""A warm-up that moves the mean TTFT of the run by less is not spoken of."""
PART = 4096
"""Values held as floats at once, each of which takes four times the memory of an array's."""


@dataclass(frozen=True, slots=True)
class SteadyState:
    """`settled` is False where TTFT still drifted behind the warm-up, None where too few requests
    could tell.

    From `from_s` on (seconds since the run's start) the run was steady; `early` of its `ok`
    requests were due before. `shift` is how much higher they make the mean TTFT: 0.1 is 10 %.
    `metrics` has `STATISTICS` of the requests from `from_s` on, and the rates are theirs.
    """

    settled: bool | None
    from_s: float
    early: int
    shift: float
    requests: int
    requests_per_s: float | None
    output_tokens_per_s: float | None
    metrics: Mapping[str, Mapping[str, float | None]]

    def to_json(self) -> dict[str, Any]:
        """For `summary.json`."""
        return asdict(self)


def each_of(requests: int) -> int:
    """So many requests are looked at by every one, every second, every fourth… of them."""
    each = 1
    while -(-requests // each) > MOST_REQUESTS:
        each *= 2
    return each


def is_notable(steady: Mapping[str, Any]) -> bool:
    """Whether a `SteadyState.to_json` has a warm-up that makes a difference."""
    return bool(steady["settled"]) and steady["early"] > 0 and abs(steady["shift"]) >= NOTABLE


def enough_s(from_s: float) -> str:
    """A `--warmup` that leaves out what was due before `from_s`: rounded up."""
    return f"{math.ceil(from_s * 10) / 10:.1f}"


def is_meant_steady(options: Mapping[str, Any], batched: bool) -> bool:
    """Whether a run with these options had one load all the time. Batches wait for their own
    members, and traces and phases of `--rate` change the load on purpose."""
    rate = str(options.get("rate") or "")
    return not batched and not options.get("trace") and not set(rate) & set(":,")


def find_steady_state(columns: Mapping[str, Sequence[float]], each: int = 1) -> SteadyState | None:
    """Of the `ok` requests that count: `COLUMNS` in any order, NaN for what is not known, where one
    stands for `each`. None without TTFT of any.

    TTFT is looked at in the order in which requests were due. `front_of` proposes a warm-up; the
    rest must not drift, and the warm-up must differ from it.
    """
    due_s, ttft_ms = columns["scheduled_s"], columns["ttft_ms"]
    known = (at for at in range(len(due_s)) if not math.isnan(ttft_ms[at]))
    order = array("q", sorted(known, key=due_s.__getitem__))
    if not order:
        return None
    early, settled = _warm_up(array("d", (ttft_ms[at] for at in order)))
    return _state(columns, order, early, settled, each)


def _warm_up(ttft_ms: Sequence[float]) -> tuple[int, bool | None]:
    """How many values at the front are a warm-up, and whether the rest is steady."""
    if len(ttft_ms) < LEAST_REQUESTS:
        return 0, None
    front = front_of(ttft_ms)
    if drifts(ttft_ms[front:]):
        return 0, False
    return (front if front_differs(ttft_ms, front) else 0), True


def _state(
    columns: Mapping[str, Sequence[float]],
    order: Sequence[int],
    early: int,
    settled: bool | None,
    each: int,
) -> SteadyState:
    late = order[early:]
    whole_ms, late_ms = (
        math.fsum(columns["ttft_ms"][at] for at in part) / len(part) for part in (order, late)
    )
    from_s = columns["scheduled_s"][late[0]]
    last_s = max(columns["end_s"][at] for at in late)
    tokens = _known(columns["output_tokens"], late)
    return SteadyState(
        settled=settled,
        from_s=from_s,
        early=early * each,
        shift=whole_ms / late_ms - 1 if late_ms > 0 else 0.0,
        requests=len(late) * each,
        requests_per_s=_per_s(len(late) * each, last_s - from_s),
        output_tokens_per_s=_per_s(sum(tokens) * each, last_s - from_s) if tokens else None,
        metrics={name: _statistics(_known(columns[name], late)) for name in LATENCIES},
    )


def _known(values: Sequence[float], places: Sequence[int]) -> Sequence[float]:
    return array("d", (value for at in places if not math.isnan(value := values[at])))


def _statistics(values: Sequence[float]) -> dict[str, float | None]:
    sketch = Sketch()
    for at in range(0, len(values), PART):
        sketch.add_many([max(value, 0.0) for value in values[at : at + PART]])
    return statistics_of(sketch)


def _per_s(amount: float, seconds: float) -> float | None:
    return amount / seconds if seconds > 0 else None
