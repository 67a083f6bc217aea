"""What was done in each span of time: throughput and outcomes."""

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dashboards.figures.marks import covered_s, in_bins, time_edges
from dashboards.figures.requests import DrawnRequests
from dashboards.figures.style import (
    HALF_PAGE_IN,
    NO_CONTEXT_COLOUR,
    OUTCOME_COLOURS,
    finished,
    new_axes,
    new_figure,
    series_colour,
)
from loadgen.runs.columns import Flags, Floats

Runs = Mapping[str, DrawnRequests]


def throughput(runs: Runs) -> Figure:
    """Requests/s and output tokens/s of complete replies, by their end."""
    figure = new_figure(*HALF_PAGE_IN)
    upper = new_axes(figure, "Throughput over time", "", "requests/s", (2, 1, 1))
    lower = new_axes(figure, "", "time (s)", "output tokens/s", (2, 1, 2))
    for number, (name, run) in enumerate(runs.items()):
        colour = series_colour(number)
        ones = np.ones(len(run))
        _rate(upper, run, ones, colour, name if len(runs) > 1 else "")
        _rate(lower, run, np.nan_to_num(run.output_tokens), colour, "")
    return finished(figure)


def _rate(axes: Axes, run: DrawnRequests, amount: Floats, colour: str, label: str) -> None:
    ok = run.ok & ~np.isnan(run.end_s)
    first_s, last_s = run.span_s
    if not ok.any() or not amount[ok].any() or first_s == last_s:
        return
    edges = time_edges(*run.span_s)
    per_s = _sums(run, ok, amount, edges) / np.maximum(covered_s(edges, *run.span_s), 1e-9)
    full = covered_s(edges, *run.span_s) > 0.25 * (edges[1] - edges[0])
    if full.any():
        edges, per_s = np.append(edges[:-1][full], edges[1:][full][-1]), per_s[full]
    axes.stairs(per_s, edges, color=colour, label=label or None, linewidth=1.5)


def _sums(run: DrawnRequests, which: Flags, amount: Floats, edges: Floats) -> Floats:
    bins = in_bins(run.end_s[which], edges)
    found = np.bincount(bins, weights=amount[which], minlength=len(edges) - 1)
    return np.asarray(found, dtype=np.float64)


def cached_share(runs: Runs) -> Figure:
    """Share of the prompt tokens that hosts said came from a cache, by the end of the replies."""
    figure = new_figure(*HALF_PAGE_IN)
    axes = new_axes(figure, "Prompt tokens from a cache", "time (s)", "share")
    for number, (name, run) in enumerate(runs.items()):
        known = run.ok & ~np.isnan(run.cached_tokens) & ~np.isnan(run.prompt_tokens)
        if known.any():
            edges = time_edges(*run.span_s)
            cached = _sums(run, known, run.cached_tokens, edges)
            prompt = _sums(run, known, run.prompt_tokens, edges)
            shown, middle = prompt > 0, (edges[1:] + edges[:-1]) / 2
            colour = series_colour(number)
            label = name if len(runs) > 1 else None
            axes.plot(middle[shown], cached[shown] / prompt[shown], ".-", color=colour, label=label)
    axes.set_ylim(0, 1.02)
    return finished(figure)


def outcomes(runs: Runs) -> Figure:
    """Ended requests of each span of time by outcome, stacked; a panel for each run."""
    figure = new_figure(HALF_PAGE_IN[0], max(HALF_PAGE_IN[1], 1.6 * len(runs)))
    for place, (name, run) in enumerate(runs.items(), 1):
        title = "Outcomes over time" + (f": {name}" if len(runs) > 1 else "")
        x = "ended at (s)" if place == len(runs) else ""
        axes = new_axes(figure, title, x, "requests", (len(runs), 1, place))
        _outcomes(axes, run)
    return finished(figure)


def _outcomes(axes: Axes, run: DrawnRequests) -> None:
    if not len(run):
        return
    first_s, last_s = run.span_s
    edges = time_edges(first_s, max(last_s, first_s + 1))
    below: Floats = np.zeros(len(edges) - 1)
    names = sorted(range(len(run.outcomes)), key=lambda each: run.outcomes[each] != "ok")
    for each in names:
        which = (run.outcome == each) & ~np.isnan(run.end_s)
        if which.any():
            name = run.outcomes[each]
            counts = _sums(run, which, np.ones(len(run)), edges)
            axes.stairs(
                below + counts,
                edges,
                baseline=below,
                fill=True,
                color=OUTCOME_COLOURS.get(name, NO_CONTEXT_COLOUR),
                label=name,
            )
            below = below + counts
