"""Latency and goodput against the load, with the objective and the load that meets it."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dashboards.figures.style import (
    NO_CONTEXT_COLOUR,
    OUTCOME_COLOURS,
    SERIES_COLOURS,
    finished,
    new_axes,
    new_figure,
)
from loadgen.compare.gate import Limit
from loadgen.saturate.folder import Point
from loadgen.saturate.search import Space

LINES = {"p50_ms": "p50", "p95_ms": "p95", "p99_ms": "p99"}
VERDICTS = {"met": "o", "undecided": "d", "missed": "x"}
LOAD = {"rate": "offered load (requests or batches/s)", "users": "users"}
MOST_LINEAR = 20.0
"""By which factor latencies may differ and be seen on a linear scale."""
Ends = tuple[float | None, ...]
"""The highest load that is met, the lowest that is not."""


def draw(points: Sequence[Point], limit: Limit | None, space: Space, ends: Ends) -> Figure:
    """Each trial is a mark, by what became of its load; lines join the medians of repeats."""
    figure = new_figure(7.2, 5.2)
    metric = points[0].metric
    upper = new_axes(figure, "Latency against load", "", metric.replace("_ms", " (ms)"), (2, 1, 1))
    lower = new_axes(figure, "Goodput", LOAD[space.by], "requests/s", (2, 1, 2))
    for number, (name, said) in enumerate(LINES.items()):
        _series(upper, points, name, said, SERIES_COLOURS[number])
    if limit is not None:
        text = f"objective: {limit.text}"
        upper.axhline(limit.bound, color=OUTCOME_COLOURS["http_error"], lw=1, label=text)
    _series(lower, points, "ok_per_s", "due and answered", SERIES_COLOURS[3])
    _series(lower, points, "goodput_per_s", "within the limits", SERIES_COLOURS[4])
    if space.by == "rate":
        offered = sorted((point.load, point.offered_per_s) for point in points)
        lower.plot(*zip(*offered, strict=True), ":", color=NO_CONTEXT_COLOUR, lw=1, label="offered")
    if _spread(points) > MOST_LINEAR:
        upper.set_yscale("log")
    for axes in (upper, lower):
        _ends(axes, ends, space)
        axes.set_xlim(left=0)
    return finished(figure)


def _series(axes: Axes, points: Sequence[Point], name: str, said: str, colour: str) -> None:
    known = [(point, getattr(point, name)) for point in points if getattr(point, name) is not None]
    loads = sorted({point.load for point, _ in known})
    middle = [float(np.median([v for point, v in known if point.load == load])) for load in loads]
    if loads:
        axes.plot(loads, middle, "-", color=colour, lw=1.5, label=said)
    for verdict, mark in VERDICTS.items():
        at = [(point.load, value) for point, value in known if point.verdict == verdict]
        if at:
            axes.plot(*zip(*at, strict=True), mark, color=colour, ms=5, ls="")


def _ends(axes: Axes, ends: Ends, space: Space) -> None:
    below, above = ends
    if below is not None:
        label = f"met at {space.said(below)}"
        axes.axvline(below, color=OUTCOME_COLOURS["ok"], lw=1, ls="--", label=label)
    if above is not None:
        label = f"not met at {space.said(above)}"
        axes.axvline(above, color=NO_CONTEXT_COLOUR, lw=1, ls="--", label=label)


def _spread(points: Sequence[Point]) -> float:
    """By which factor the latencies differ."""
    known = [v for point in points for v in (point.p50_ms, point.p95_ms, point.p99_ms) if v]
    return max(known) / min(known) if known else 1.0
