"""Which cache is enough for an order of requests."""

from collections.abc import Sequence
from dataclasses import dataclass

from dashboards.figures.cache_curve import draw_orders
from dashboards.studies.answer import MarkdownTable, StudyAnswer, StudyPicture
from dashboards.studies.cell import Cells
from dashboards.studies.wording import count, memory, percent, span
from loadgen.locality.curve import CacheCurve, predict
from loadgen.locality.measured import MeasuredRun, measured_run, run_bytes_per_token
from loadgen.locality.trace_sources import trace_of_run

MOST_POINTS = 3.0
"""How far a prediction may be off and still be called right, in points of hit rate."""
SHOWN_POINTS = 0.05
"""Less is 0.0 as it is written."""


def enough(cells: Cells) -> StudyAnswer:
    """Requests one after the other, the engine's cache the only one. Every repeat has an order of
    requests, and so a curve, of its own; caches of all sizes are sent the same."""
    usable = cells.counted
    orders = {cell.repeat: cell.run for cell in reversed(usable.all)}
    measured = [(cell.repeat, measured_run(cell.run)) for cell in usable]
    curves = {repeat: predict(trace_of_run(run)) for repeat, run in sorted(orders.items())}
    bytes_per_token = run_bytes_per_token(usable.all[0].run)
    drawn = [
        (curve, [(each.tokens, each.hit_rate, each.name) for at, each in measured if at == repeat])
        for repeat, curve in curves.items()
    ]
    picture = StudyPicture(
        "enough",
        draw_orders(drawn, bytes_per_token),
        "predicted hit rate against the size of the cache, with the measured ones",
    )
    return StudyAnswer(
        "Which cache is enough for this workload?",
        (knee([*curves.values()], bytes_per_token), *error([each for _, each in measured])),
        (_prediction_table(measured),),
        (picture,),
    )


def knee(curves: Sequence[CacheCurve], bytes_per_token: int | None) -> str:
    """The size that is enough for every order of requests, and why."""
    most = max(curves, key=lambda curve: curve.knee.enough_tokens)
    if not any(curve.bound for curve in curves):
        return "No cache helps this workload, of whatever size: no prompt begins as an earlier one."
    enough_tokens = most.knee.enough_tokens
    size = f" ({memory(enough_tokens * bytes_per_token)})" if bytes_per_token else ""
    sizes = span([curve.knee.enough_tokens for curve in curves], count)
    orders = f" The {len(curves)} orders that were sent need {sizes} tokens." if curves[1:] else ""
    rates = span([curve.at(enough_tokens).hit_rate for curve in curves], percent)
    return (
        f"{count(enough_tokens)} tokens{size} are enough for this workload, because what is used"
        f" again comes back, but for 1 %, before {count(most.knee.reuse_tokens)} tokens of others:"
        f" then {rates} of the prompt tokens come from the cache, and"
        f" {span([curve.bound for curve in curves], percent)} from one without limit.{orders} The"
        f" longest request alone takes"
        f" {count(max(curve.knee.least_tokens for curve in curves))} tokens."
    )


def error(measured: Sequence[MeasuredRun]) -> tuple[str, str]:
    """How far the predictions are off, and what follows."""
    worst = max(measured, key=lambda each: abs(each.error_points))
    off = abs(worst.error_points)
    runs = "the one run" if len(measured) == 1 else f"{len(measured)} runs"
    at_worst = (
        f" (with {count(worst.tokens)} tokens predicted {percent(worst.predicted)}, measured"
        f" {percent(worst.hit_rate)})"
    )
    most = f"at most {off:.1f}" if off >= SHOWN_POINTS else "by less than 0.1"
    text = (
        f"Over {runs} the prediction is {most} points of hit rate off"
        f"{at_worst if off >= SHOWN_POINTS else ''}."
    )
    if off <= MOST_POINTS:
        return text, f"That is within the {MOST_POINTS:g} points it may be: size a cache by it."
    return text, f"That is more than the {MOST_POINTS:g} points it may be: do not rely on it here."


def _prediction_table(measured: Sequence[tuple[int, MeasuredRun]]) -> MarkdownTable:
    rows = tuple(
        (
            count(each.tokens),
            str(repeat),
            count(each.requests),
            percent(each.predicted),
            percent(each.hit_rate),
            f"{each.error_points:+.1f}",
        )
        for repeat, each in sorted(measured, key=lambda found: (found[1].tokens, found[0]))
    )
    header = ("cache, tokens", "repeat", "requests", "predicted", "measured", "points off")
    return MarkdownTable(header, rows)


@dataclass(frozen=True, slots=True)
class HitPrediction:
    """Shares of the prompt tokens of a run, 0 to 1, that need no computing; `by` is what keeps
    them, of some `kind`."""

    by: str
    repeat: int
    predicted: float
    measured: float
    kind: str = ""
    span: tuple[float, float] | None = None
    """From the lowest on, where the order of requests does not settle it."""

    @property
    def points_off(self) -> float:
        """The prediction less what was measured."""
        return 100 * (self.predicted - self.measured)


def most_off(found: Sequence[HitPrediction]) -> tuple[float, str]:
    """The worst in points, and words behind it where that is more than `MOST_POINTS`."""
    off = max(abs(each.points_off) for each in found)
    return off, "" if off <= MOST_POINTS else f", more than the {MOST_POINTS:g} it may be"


def hit_table(by: str, found: Sequence[HitPrediction]) -> MarkdownTable:
    """A row for each run; `by` heads the first column."""
    header = (by, "repeat", "predicted", "measured", "points off")
    rows = tuple(
        (
            each.by,
            str(each.repeat),
            percent(each.predicted) + _span(each),
            percent(each.measured),
            f"{each.points_off:+.1f}",
        )
        for each in found
    )
    return MarkdownTable(header, rows)


def _span(found: HitPrediction) -> str:
    if found.span is None or found.span[0] == found.span[1]:
        return ""
    low, high = map(percent, found.span)
    return f" ({low} to {high})"
