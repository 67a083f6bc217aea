"""Figures of many runs over one of the options in which they differ."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dashboards.figures.style import (
    finish,
    legend_below,
    new_axes,
    new_figure,
    plain,
    series_colour,
    shortened,
)


@dataclass(frozen=True, slots=True)
class AxisLine:
    """`points` has, for values of the option, the figures of the runs that had it; `name` tells
    the other options of all of them, empty where there are none."""

    name: str
    points: Mapping[str, Sequence[float]]


def over_axis(axis: str, values: Sequence[str], panels: Mapping[str, Sequence[AxisLine]]) -> Figure:
    """A panel for each quantity, which names it with its unit: marks at the medians, whiskers from
    the lowest to the highest run."""
    rows = -(-len(panels) // 2)
    figure = new_figure(7.2, 2.7 * rows + 0.4)
    places = _places(values)
    for number, (title, lines) in enumerate(panels.items(), 1):
        axes = new_axes(figure, title, axis, "", (rows, min(len(panels), 2), number))
        for index, line in enumerate(lines):
            _draw(axes, line, places, series_colour(index))
        finish(axes)
        if not is_numeric(values):
            axes.set_xticks(list(places.values()), [plain(shortened(value)) for value in values])
            axes.margins(x=0.15)
    legend_below(figure)
    return figure


def is_numeric(values: Sequence[str]) -> bool:
    """Whether all values of an option are numbers, so that their distances mean something."""
    try:
        return bool(np.isfinite([float(value) for value in values]).all())
    except ValueError:
        return False


def _places(values: Sequence[str]) -> dict[str, float]:
    if is_numeric(values):
        return {value: float(value) for value in values}
    return {value: float(place) for place, value in enumerate(values)}


def _draw(axes: Axes, line: AxisLine, places: Mapping[str, float], colour: str) -> None:
    known = sorted((places[value], list(found)) for value, found in line.points.items() if found)
    if not known:
        return
    x = [place for place, _ in known]
    middle = np.array([np.median(found) for _, found in known])
    low = middle - np.array([min(found) for _, found in known])
    high = np.array([max(found) for _, found in known]) - middle
    axes.errorbar(
        np.array(x),
        middle,
        np.array([low, high]),
        color=colour,
        marker="o",
        ms=4,
        lw=1.5,
        capsize=3,
        label=line.name or None,
    )
