"""The context timeline: each served request a cell in its context's colour, in order of service.

It is read like lines of text. Where an engine jumps between contexts, they are confetti; where it
serves one context after the other, a flag.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from dashboards.figures.requests import context_changes
from dashboards.figures.style import (
    CONTEXT_COLOURS,
    NO_CONTEXT_COLOUR,
    colour_of,
    legend_columns,
    new_figure,
    shortened,
)
from loadgen.runs.columns import Indices

ROW_CELLS = 144
MOST_ROWS, LEAST_ROWS = 16, 3
MOST_LEGEND, MOST_COLUMNS = 12, 6
_MOST_VECTOR_CELLS = 3 * ROW_CELLS
_ROW_IN, _LEAST_STRIP_IN = 0.2, 0.5


def timeline(
    strips: Mapping[str, Indices], contexts: Sequence[str], width_in: float = 11.0
) -> Figure:
    """A strip for each name: positions in `contexts`, in the order of service. A long one goes on
    in the next row; of one longer than `most_rows`, each row is a stretch of neighbours."""
    most = most_rows(len(strips))
    rows = [len(_rows(len(order), most)[1]) for order in strips.values()]
    heights = [max(_LEAST_STRIP_IN, each * _ROW_IN) for each in rows]
    shown = _legend_entries(contexts, strips)
    names = [str(each.get_label()) for each in shown]
    columns = min(legend_columns(width_in, names), MOST_COLUMNS) if names else 1
    below_in = 0.1 + (0.1 + 0.2 * -(-len(shown) // columns) if shown else 0.0)
    figure = new_figure(width_in, sum(heights) + 0.42 * len(heights) + below_in)
    grid = figure.add_gridspec(len(strips), 1, height_ratios=heights)
    for place, (name, order) in enumerate(strips.items()):
        _strip(figure.add_subplot(grid[place]), described(name, order, most), order, contexts, most)
    if shown:
        figure.legend(
            handles=shown, loc="outside lower left", ncols=columns, frameon=False, fontsize=9
        )
    return figure


def most_rows(strips: int) -> int:
    """In how many rows a strip may go on, beside others."""
    return max(MOST_ROWS // max(strips, 1), LEAST_ROWS)


def described(name: str, order: Indices, most: int = MOST_ROWS) -> str:
    """What a strip shows, in words."""
    start = f"{name}: " if name else ""
    if len(order) < 2:
        return f"{start}{len(order)} request(s) served"
    changes = context_changes(order)
    words = (
        f"{start}{len(order):,} requests in the order of service;"
        f" the context changes {changes:,} times"
    )
    _, starts = _rows(len(order), most)
    if len(starts) * ROW_CELLS < len(order):
        words += f" ({len(starts)} stretches of {ROW_CELLS} shown)"
    return words


def _rows(count: int, most: int) -> tuple[int, list[int]]:
    """Cells in a row, and with which request each row begins."""
    rows = max(-(-count // ROW_CELLS), 1)
    if rows > most:
        starts = np.linspace(0, count - ROW_CELLS, most)
        return ROW_CELLS, [int(start) for start in starts]
    cells = max(-(-count // rows), 1)
    return cells, [row * cells for row in range(rows)]


def _strip(axes: Axes, title: str, order: Indices, contexts: Sequence[str], most: int) -> None:
    axes.set_title(title, loc="left")
    cells, starts = _rows(len(order), most)
    draw = _cells if len(order) <= _MOST_VECTOR_CELLS else _image
    for row, start in enumerate(starts):
        draw(axes, row, order[start : start + cells], contexts)
    axes.set_xlim(0, cells)
    axes.set_ylim(len(starts), 0)
    axes.set_aspect("auto")
    ticks = (0, len(starts) - 1) if len(starts) > 1 else ()
    axes.set_yticks([row + 0.5 for row in ticks], [f"{starts[row] + 1:,}" for row in ticks])
    axes.set_xticks([])
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)


def _cells(axes: Axes, row: int, order: Indices, contexts: Sequence[str]) -> None:
    for context in np.unique(order):
        bars = [(float(place) + 0.06, 0.88) for place in np.flatnonzero(order == context)]
        axes.broken_barh(bars, (row + 0.08, 0.84), color=_colour(contexts, int(context)), lw=0)


def _image(axes: Axes, row: int, order: Indices, contexts: Sequence[str]) -> None:
    colours = np.asarray([to_rgb(_colour(contexts, int(context))) for context in order])
    extent = (0, len(order), row + 0.92, row + 0.08)
    axes.imshow(colours[np.newaxis], extent=extent, aspect="auto", interpolation="none")


def _colour(contexts: Sequence[str], context: int) -> str:
    return colour_of(context) if contexts[context] else NO_CONTEXT_COLOUR


def _legend_entries(contexts: Sequence[str], strips: Mapping[str, Indices]) -> list[Patch]:
    served = sorted({int(context) for order in strips.values() for context in np.unique(order)})
    if len(served) > MOST_LEGEND:
        repeat = "; colours repeat" if len(served) > len(CONTEXT_COLOURS) else ""
        return [Patch(color="none", label=f"a colour for each of {len(served)} contexts{repeat}")]
    return [
        Patch(color=_colour(contexts, each), label=shortened(contexts[each]) or "no context")
        for each in served
    ]
