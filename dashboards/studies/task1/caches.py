"""Which cache is enough, and what LMCache's memory adds behind it."""

from collections.abc import Iterator, Sequence

from dashboards.figures.cache_curve import draw_orders
from dashboards.report.wording import listed
from dashboards.studies.answer import (
    LATENCY,
    MarkdownTable,
    StudyAnswer,
    StudyPicture,
    cell_table,
)
from dashboards.studies.cell import COMPUTED, OFFLOAD, PLAIN, Cells
from dashboards.studies.contrast import Contrasts, contrast
from dashboards.studies.pictures import Line, against, cost_panels, line_of
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


COLUMNS = (*LATENCY, "hit_rate", "external_hit_rate", COMPUTED)
SAME = 1.01
"""Up to so many times the tokens is as few: single chunks come and go with the moment."""
WORKLOADS = {"offload": "Many contexts in turn", "long": "A few long prompts repeated"}


def offload(cells: Cells) -> StudyAnswer:
    """For each workload, the engine alone against the engine with each size of L1."""
    short: list[str] = []
    sentences: list[str] = []
    tables: list[MarkdownTable] = []
    for part, name in WORKLOADS.items():
        found = _by_memory(cells.of(part))
        if found.found:
            short.append(found.said(f"{name}, with LMCache behind the engine's cache"))
            sentences += (*_where_from(name, cells.of(part)), *_enough_memory(name, cells.of(part)))
            tables.append(found.table)

    def lines(figure: str) -> list[Line]:
        return [_line(name, cells.of(part), figure) for part, name in WORKLOADS.items()]

    picture = StudyPicture(
        "offload",
        against(
            cost_panels(COMPUTED, "prompt tokens in a run", lines),
            "LMCache's memory, GB (0: none)",
            False,
        ),
        "computed prompt tokens and time to first token against LMCache's memory",
    )
    return StudyAnswer(
        "What does LMCache's memory add behind the engine's cache, and how much of it is enough?",
        (" ".join(short) or "Not measured.", *sentences),
        (*tables, cell_table(cells, ("context_tokens", "target", "l1_gb"), COLUMNS)),
        (picture,),
    )


def _by_memory(cells: Cells) -> Contrasts:
    alone, behind = cells.where(target=PLAIN), cells.where(target=OFFLOAD)
    names = "without LMCache, mean TTFT", "with it, mean TTFT"
    return Contrasts(
        "GB of LMCache",
        tuple(
            (size, contrast(alone, part, names, "ttft_ms.mean"))
            for size, part in behind.by("l1_gb")
        ),
    )


def _where_from(name: str, cells: Cells) -> Iterator[str]:
    behind = cells.where(target=OFFLOAD)
    parts = [("without LMCache", cells.where(target=PLAIN))]
    parts += [(f"with {size} GB", part) for size, part in behind.by("l1_gb")]
    said = []
    for which, part in parts:
        computed, taken = part.median(COMPUTED), part.median("external_hit_rate")
        if computed is not None:
            share = f" ({percent(taken)} of all came from it)" if taken else ""
            said.append(f"{count(computed)} {which}{share}")
    if said:
        yield f"{name}: the prompt tokens that had to be computed in a run were {listed(said)}."


def _enough_memory(name: str, cells: Cells) -> Iterator[str]:
    """Whether the largest memory saves tokens in every run; if so, the smallest that computes no
    more on the same requests."""
    *less, (largest, found) = cells.where(target=OFFLOAD).by("l1_gb")
    most, alone = found.by_repeat(COMPUTED), cells.where(target=PLAIN).by_repeat(COMPUTED)
    both = alone.keys() & most.keys()
    saved = sum(alone[repeat] > SAME * most[repeat] for repeat in both)
    if both:
        none = "" if saved == len(both) else ", so that no size is called enough"
        yield f"{name}: {largest} GB saved tokens in {saved} of {len(both)} runs{none}."
    if saved < len(both):
        return
    for size, part in less:
        computed = part.by_repeat(COMPUTED)
        both = computed.keys() & most.keys()
        if both and all(computed[repeat] <= SAME * most[repeat] for repeat in both):
            yield f"{name}: {size} GB are enough; more computes no fewer tokens."
            return
    if less and most:
        yield f"{name}: of the sizes tried, none below {largest} GB computes as little."


def _line(name: str, cells: Cells, figure: str) -> Line:
    """From the engine alone, at 0, on."""
    none = cells.where(target=PLAIN).figures(figure)
    behind = line_of("", cells.where(target=OFFLOAD), "l1_gb", figure)
    start = ((0.0, tuple(none)),) if none else ()
    return Line(name, (*start, *behind.points))
