"""Which cache is enough: the hit rate predicted from the order alone beside the measured one."""

from collections.abc import Sequence

from dashboards.figures.cache_curve import draw
from dashboards.studies.answer import Answer, Picture
from dashboards.studies.cell import Cells
from dashboards.studies.table import Table
from dashboards.studies.wording import count, memory, percent
from loadgen.locality.curve import CacheCurve, predict
from loadgen.locality.finished import trace_of_run
from loadgen.locality.measured import Measured, measured_run, run_bytes_per_token

MOST_POINTS = 3.0
"""How far a prediction may be off and still be called right, in points of hit rate."""


def enough(cells: Cells) -> Answer:
    """Requests one after the other, the engine's cache the only one."""
    runs = [cell.run for cell in cells.counted]
    measured = [measured_run(run) for run in runs]
    curve, bytes_per_token = predict(trace_of_run(runs[0])), run_bytes_per_token(runs[0])
    points = [(each.tokens, each.hit_rate, each.name) for each in measured]
    picture = Picture(
        "enough",
        draw(curve, points, bytes_per_token),
        "predicted hit rate against the size of the cache, with the measured ones",
    )
    return Answer(
        "Which cache is enough for this workload?",
        (knee(curve, bytes_per_token), *error(measured)),
        (_table(measured),),
        (picture,),
    )


def knee(curve: CacheCurve, bytes_per_token: int | None) -> str:
    """The size that is enough, and why."""
    knee = curve.knee
    if curve.bound == 0:
        return "No cache helps this workload, of whatever size: no prompt begins as an earlier one."
    size = f" ({memory(knee.enough_tokens * bytes_per_token)})" if bytes_per_token else ""
    return (
        f"{count(knee.enough_tokens)} tokens{size} are enough for this workload, because they give"
        f" {percent(curve.at(knee.enough_tokens).hit_rate)} of the prompt tokens from the cache and"
        f" one without limit {percent(curve.bound)}: what is used again comes back, but for 1 %,"
        f" before {count(knee.reuse_tokens)} tokens of others. Less than"
        f" {count(knee.least_tokens)} tokens cannot serve the longest request."
    )


def error(measured: Sequence[Measured]) -> tuple[str, str]:
    """How far the predictions are off, and what follows."""
    worst = max(measured, key=lambda each: abs(each.error_points))
    off = abs(worst.error_points)
    runs = "the one run" if len(measured) == 1 else f"{len(measured)} runs"
    text = (
        f"Over {runs} the prediction is at most {off:.1f} points of hit rate off (with"
        f" {count(worst.tokens)} tokens predicted {percent(worst.predicted)}, measured"
        f" {percent(worst.hit_rate)})."
    )
    if off <= MOST_POINTS:
        return text, f"That is within the {MOST_POINTS:g} points it may be: size a cache by it."
    return text, f"That is more than the {MOST_POINTS:g} points it may be: do not rely on it here."


def _table(measured: Sequence[Measured]) -> Table:
    rows = tuple(
        (
            count(each.tokens),
            count(each.requests),
            percent(each.predicted),
            percent(each.hit_rate),
            f"{each.error_points:+.1f}",
        )
        for each in sorted(measured, key=lambda each: each.tokens)
    )
    return Table(("cache, tokens", "requests", "predicted", "measured", "points off"), rows)
