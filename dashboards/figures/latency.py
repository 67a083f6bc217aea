"""Latency over time, by request number, and as a distribution."""

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dashboards.figures.marks import MOST_VECTOR_MARKS, binned_quantiles, thinned, time_edges
from dashboards.figures.requests import DrawnRequests
from dashboards.figures.style import (
    HALF_PAGE_IN,
    NO_CONTEXT_COLOUR,
    PAGE_IN,
    colour_of,
    finish,
    finished,
    new_axes,
    new_figure,
    series_colour,
)
from loadgen.runs.columns import Floats

Runs = Mapping[str, DrawnRequests]
_QUANTILES = {"p50": 0.5, "p95": 0.95}
_CURVE_POINTS = 400


def latency_over_time(runs: Runs) -> Figure:
    """TTFT by the moment of sending, with p50 and p95 of short spans; of one run E2E too."""
    figure = new_figure(*HALF_PAGE_IN)
    axes = new_axes(figure, "Latency over time", "sent at (s)", "ms")
    metrics = ("ttft_ms", "e2e_ms") if len(runs) == 1 else ("ttft_ms",)
    lines = [(name, run, metric) for name, run in runs.items() for metric in metrics]
    for number, (name, run, metric) in enumerate(lines):
        said = metric.split("_")[0].upper()
        _quantile_lines(axes, run, metric, number, said if len(runs) == 1 else f"{name} {said}")
    return finished(figure)


def _quantile_lines(axes: Axes, run: DrawnRequests, metric: str, number: int, label: str) -> None:
    timed, colour = run.timed & ~np.isnan(run.at_s), series_colour(number)
    if not timed.any():
        return
    if metric == "ttft_ms":
        _dots(axes, run.at_s[timed], run.ttft_ms[timed], colour)
    edges = time_edges(*run.span_s)
    wanted = np.asarray(list(_QUANTILES.values()))
    found = binned_quantiles(run.at_s[timed], getattr(run, metric)[timed], edges, wanted)
    middle = (edges[1:] + edges[:-1]) / 2
    for name, values, style in zip(_QUANTILES, found, ("-", ":"), strict=True):
        shown = ~np.isnan(values)
        if not shown.any():
            continue
        axes.plot(
            middle[shown],
            values[shown],
            style,
            color=colour,
            label=f"{label} {name}",
            linewidth=1.5,
            marker="." if shown.sum() < 40 else "",
        )


def _dots(axes: Axes, at_s: Floats, ttft_ms: Floats, colour: str) -> None:
    kept = thinned(len(at_s))
    many = len(kept) > MOST_VECTOR_MARKS
    axes.scatter(
        at_s[kept],
        ttft_ms[kept],
        s=2 if many else 6,
        color=colour,
        alpha=0.1 if many else 0.3,
        linewidths=0,
        rasterized=many,
        zorder=1,
    )


def latency_by_number(runs: Runs) -> Figure:
    """TTFT of each request by its place in the order of service, a mark in its context's colour;
    a panel for each run, on one scale."""
    figure = new_figure(PAGE_IN, 0.5 + 1.9 * len(runs))
    first: Axes | None = None
    for place, (name, run) in enumerate(runs.items(), 1):
        title = "TTFT by request, in the order of service" + (f": {name}" if len(runs) > 1 else "")
        label = "number of the request" if place == len(runs) else ""
        axes = new_axes(figure, title, label, "TTFT (ms)", (len(runs), 1, place))
        if first is not None:
            axes.sharey(first)
        first = first or axes
        _by_number(axes, run)
        finish(axes)
    return figure


def _by_number(axes: Axes, run: DrawnRequests) -> None:
    order = run.service_order
    order = order[~np.isnan(run.ttft_ms[order])]
    kept = thinned(len(order))
    number, order = kept + 1, order[kept]
    colours = [
        colour_of(int(context)) if run.contexts[context] else NO_CONTEXT_COLOUR
        for context in run.context[order]
    ]
    size = 16 if len(order) < 300 else 8 if len(order) < MOST_VECTOR_MARKS else 3
    many = len(order) > MOST_VECTOR_MARKS
    axes.scatter(number, run.ttft_ms[order], s=size, c=colours, linewidths=0, rasterized=many)
    axes.margins(x=0.01)


def latency_cdf(runs: Runs) -> Figure:
    """Share of requests with at most that latency, on a logarithmic scale; E2E is dashed."""
    figure = new_figure(*HALF_PAGE_IN)
    axes = new_axes(figure, "Share of requests within a latency", "ms", "share of requests")
    for number, (name, run) in enumerate(runs.items()):
        colour = series_colour(number)
        for metric, style in (("ttft_ms", "-"), ("e2e_ms", "--")):
            values = getattr(run, metric)[run.timed]
            values = np.sort(values[values > 0])
            if len(values):
                label = metric.split("_")[0].upper()
                label = label if len(runs) == 1 else f"{name} {label}"
                share = np.linspace(0, 1, min(len(values), _CURVE_POINTS) + 1)[1:]
                reached = values[np.ceil(share * len(values)).astype(np.intp) - 1]
                axes.plot(reached, share, style, color=colour, label=label, drawstyle="steps-post")
    axes.set_xscale("log")
    axes.set_ylim(0, 1.01)
    return finished(figure)
