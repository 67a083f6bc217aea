"""How far a twin is off the replies of runs: by their length of time, and over the run."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dashboards.figures.marks import thinned
from dashboards.figures.style import (
    NO_CONTEXT_COLOUR,
    finish,
    legend_below,
    new_axes,
    new_figure,
    series_colour,
)
from loadgen.runs.columns import Floats
from loadgen.twin.calibrate import RunResiduals

WINDOWS = 12


@dataclass(frozen=True, slots=True)
class _Drawn:
    """Percent that the twin says too much, of replies at places on an axis."""

    at: Floats
    off: Floats
    colour: str
    name: str


def draw_residuals(runs: Sequence[RunResiduals]) -> Figure:
    """A dot for each reply, simulated over measured: of first tokens, of last ones, and over the
    time of sending with a line through the medians of equal parts, which shows a machine whose
    speed drifts. A colour for each run."""
    figure = new_figure(11.0, 3.6)
    panels = [
        new_axes(figure, "First token", "measured, s", "simulated, % off", (1, 3, 1)),
        new_axes(figure, "Last token", "measured, s", "", (1, 3, 2)),
        new_axes(figure, "Last token, over the run", "sent, s", "", (1, 3, 3)),
    ]
    for number, run in enumerate(runs):
        colour = series_colour(number)
        first, last = _off(run.twin_ttft_s, run.ttft_s), _off(run.twin_e2e_s, run.e2e_s)
        _dots(panels[0], _Drawn(run.ttft_s, first, colour, run.name))
        _dots(panels[1], _Drawn(run.e2e_s, last, colour, run.name))
        over_time = _Drawn(run.sent_s, last, colour, run.name)
        _dots(panels[2], over_time)
        _medians(panels[2], over_time)
    for axes in panels:
        axes.axhline(0, color=NO_CONTEXT_COLOUR, linestyle=":", linewidth=1)
        finish(axes)
        axes.autoscale(axis="y")
    legend_below(figure)
    return figure


def _off(twin: Floats, measured: Floats) -> Floats:
    return 100 * (twin / measured - 1)


def _dots(axes: Axes, drawn: _Drawn) -> None:
    kept = thinned(len(drawn.at))
    axes.scatter(
        *(drawn.at[kept], drawn.off[kept]),
        s=9,
        color=drawn.colour,
        alpha=0.55,
        linewidths=0,
        label=drawn.name,
    )


def _medians(axes: Axes, drawn: _Drawn) -> None:
    count = min(WINDOWS, len(drawn.at) // 5)
    if count:
        parts = zip(np.array_split(drawn.at, count), np.array_split(drawn.off, count), strict=True)
        at, off = zip(*((np.median(at), np.median(off)) for at, off in parts), strict=True)
        axes.plot(at, off, color=drawn.colour, linewidth=1.5)
