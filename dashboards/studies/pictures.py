"""The pictures of the studies."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator, StrMethodFormatter

from dashboards.figures.line_fit import LineFit
from dashboards.figures.style import (
    INK,
    NO_CONTEXT_COLOUR,
    SERIES_COLOURS,
    legend_below,
    new_axes,
    new_figure,
    plain,
    series_colour,
)
from dashboards.studies.cell import COMPUTED, FIRST, Cells, middle_of
from dashboards.studies.wording import count, crowd
from loadgen.runs.columns import Floats

MARKERS = ("o", "s", "^", "D", "v", "P")
FIRST_PANEL = "Time to first token", "mean, ms"
COST_PANELS = {COMPUTED: ("Computed", "prompt tokens in a run"), FIRST: FIRST_PANEL}
"""Of bars: by figure the title and what stands on the x axis."""


@dataclass(frozen=True, slots=True)
class Line:
    """`points` are x and the figure of each repeat there, `figure` its name."""

    name: str
    points: tuple[tuple[float, tuple[float, ...]], ...]
    figure: str = ""


def line_of(name: str, cells: Cells, setting: str, figure: str, scale: float = 1.0) -> Line:
    """A figure of the summary times `scale` against a setting that is a number."""
    found = ((float(value), part.figures(figure)) for value, part in cells.by(setting))
    points = ((at, tuple(scale * each for each in values)) for at, values in found if values)
    return Line(name, tuple(points), figure)


def by_users(cells: Cells, setting: str) -> list[tuple[str, str, list[Line]]]:
    """Panels of hit rate and time to first token against a setting, a line for each crowd."""

    def lines(figure: str, scale: float = 1.0) -> list[Line]:
        return [
            line_of(crowd(users), part, setting, figure, scale) for users, part in cells.by("users")
        ]

    return [
        ("From the cache", "% of prompt tokens", lines("hit_rate", 100)),
        (*FIRST_PANEL, lines(FIRST)),
    ]


def cost_panels(
    computed: str, y: str, lines: Callable[[str], list[Line]]
) -> list[tuple[str, str, list[Line]]]:
    """Panels of computed tokens and time to first token, of lines that are made of a figure."""
    return [("Computed", y, lines(computed)), (*FIRST_PANEL, lines(FIRST))]


def draw_lines(axes: Axes, lines: Sequence[Line], log: bool = True) -> None:
    """The middle of each point's repeats, with a bar from the least to the most of them. From 0 on,
    so that heights may be compared. Several lines are named in the figure's legend."""
    lines = [line for line in lines if line.points]
    for index, line in enumerate(lines):
        x = [at for at, _ in line.points]
        y = [middle_of(line.figure, values) for _, values in line.points]
        low = [middle - min(values) for middle, (_, values) in zip(y, line.points, strict=True)]
        high = [max(values) - middle for middle, (_, values) in zip(y, line.points, strict=True)]
        axes.errorbar(
            x,
            y,
            yerr=[low, high],
            color=series_colour(index),
            marker=MARKERS[index % len(MARKERS)],
            capsize=3,
            label=line.name if len(lines) > 1 else None,
        )
    ticks = sorted({at for line in lines for at, _ in line.points})
    if log and ticks and ticks[0] > 0:
        axes.set_xscale("log")
    axes.xaxis.set_major_locator(FixedLocator(ticks))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xticks(ticks, [f"{tick:g}" if tick < 10 else count(tick) for tick in ticks])
    highest = max((max(values) for line in lines for _, values in line.points), default=0)
    axes.set_ylim(0, 1.12 * highest or 1)  # some air above, where there is anything to see
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,.6g}"))
    axes.grid(axis="y", alpha=0.3)


def against(panels: Sequence[tuple[str, str, Sequence[Line]]], x: str, log: bool = True) -> Figure:
    """Panels side by side, each with a title, what stands on its y axis, and its lines."""
    figure = new_figure(7.2 if len(panels) < 3 else 10.8, 3.2)
    for place, (title, y, lines) in enumerate(panels, 1):
        draw_lines(new_axes(figure, title, x, y, (1, len(panels), place)), lines, log)
    legend_below(figure)
    return figure


@dataclass(frozen=True, slots=True)
class PointCloud:
    """Requests as points, with the line that was fitted to them, if it is to be drawn."""

    name: str
    x: Floats
    y: Floats
    fit: LineFit | None


def clouds(panels: Mapping[str, Sequence[PointCloud]], x: str, y: str) -> Figure:
    """A point per request, and a line through each cloud that has one."""
    figure = new_figure(7.2, 3.2)
    for place, (title, parts) in enumerate(panels.items(), 1):
        axes = new_axes(figure, title, x, y if place == 1 else "", (1, len(panels), place))
        for index, cloud in enumerate(parts):
            _draw_cloud(axes, cloud, SERIES_COLOURS[index])
        axes.set_ylim(bottom=0)
        axes.set_xlim(left=0)
        axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,.6g}"))
        axes.grid(alpha=0.3)
    legend_below(figure)
    return figure


def _draw_cloud(axes: Axes, cloud: PointCloud, colour: str) -> None:
    axes.scatter(cloud.x, cloud.y, s=14, color=colour, alpha=0.7, linewidths=0, label=cloud.name)
    if cloud.fit is not None and len(cloud.x):
        ends = np.asarray([cloud.x.min(), cloud.x.max()])
        axes.plot(ends, np.maximum(cloud.fit.intercept + cloud.fit.slope * ends, 0), color=colour)


@dataclass(frozen=True, slots=True)
class Bar:
    """The figures of `cells` are shown; one that `stands_out` or is what others are set against."""

    name: str
    cells: Cells
    stands_out: bool


def bars(panels: Mapping[str, tuple[str, str]], rows: Sequence[Bar]) -> Figure:
    """For each panel, a figure with a title and what stands on its x axis, a bar for each row: the
    middle of its runs, with their range as a whisker. Shares are drawn in percent."""
    figure = new_figure(7.2 if len(panels) < 3 else 10.8, 0.9 + 0.36 * len(rows))
    for place, (name, (title, x)) in enumerate(panels.items(), 1):
        axes = new_axes(figure, title, x, "", (1, len(panels), place))
        for row, each in enumerate(rows):
            colour = SERIES_COLOURS[0] if each.stands_out else NO_CONTEXT_COLOUR
            if values := each.cells.figures(name):
                ends = middle_of(name, values), min(values), max(values)
                _bar(axes, row, [100 * end for end in ends] if x[0] == "%" else ends, colour)
        names = [each.name for each in rows] if place == 1 else [""] * len(rows)
        axes.set_yticks(range(len(rows)), [*map(plain, names)])
        axes.set_ylim(len(rows) - 0.4, -0.6)
        axes.set_xlim(left=0)
        axes.grid(axis="x", alpha=0.3)
    return figure


def _bar(axes: Axes, row: int, ends: Sequence[float], colour: str) -> None:
    middle, low, high = ends
    axes.barh(row, middle, color=colour, height=0.62)
    if high > low:
        reach = [[middle - low], [high - middle]]
        axes.errorbar(middle, row, xerr=reach, color=INK, capsize=3, linestyle="none")
