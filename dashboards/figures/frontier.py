"""What more cache buys: the highest rate that keeps an objective, of each size and order."""

import math
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dashboards.figures.style import (
    NO_CONTEXT_COLOUR,
    SERIES_COLOURS,
    finished,
    new_axes,
    new_figure,
)
from loadgen.twin.advice import ORDERS, Advice, SizeTried


def draw_frontier(advice: Advice) -> Figure:
    """Requests a second that keep the objective over the size of the cache, a line for each order;
    without rates, the limited statistic and its bound. Bars are the intervals, a ring is the
    smallest cache that is advised. With a price, the cost of a million requests stands beside each
    point."""
    figure = new_figure()
    has_rates = any(each.rate is not None for each in advice.candidates)
    title = advice.limit.text if has_rates else advice.limit.statistic.name
    axes = new_axes(figure, title, "KV cache, thousands of tokens")
    for order, colour in zip(ORDERS, SERIES_COLOURS, strict=False):
        own = [each for each in advice.candidates if each.by_context == order]
        _line(axes, own, colour, ORDERS[order])
        _costs(axes, own, colour, advice)
        if (smallest := advice.smallest(order)) is not None:
            axes.plot(_thousands(smallest), _height(smallest), "o", ms=12, mfc="none", mec=colour)
    if not has_rates:
        bound = advice.limit.bound
        axes.axhline(bound, color=NO_CONTEXT_COLOUR, linestyle=":", label=advice.limit.text)
    axes.set_ylabel("requests/s" if has_rates else "ms")
    axes.set_ylim(bottom=0)
    return finished(figure)


def _line(axes: Axes, own: Sequence[SizeTried], colour: str, label: str) -> None:
    sizes, values = [_thousands(each) for each in own], [_height(each) for each in own]
    axes.plot(sizes, values, marker="o", color=colour, label=label)
    for each, size in zip(own, sizes, strict=True):
        low, high = each.interval if each.rate is None else each.rate.interval
        if not math.isinf(high):
            axes.vlines(size, low, high, color=colour, linewidth=1)


def _costs(axes: Axes, own: Sequence[SizeTried], colour: str, advice: Advice) -> None:
    for each in own:
        if (cost := advice.cost(each)) is not None:
            place = _thousands(each), _height(each)
            apart = (5, 6 if each.by_context else -11)
            axes.annotate(
                f"{cost:,.2f}",
                place,
                xytext=apart,
                textcoords="offset points",
                fontsize=7,
                color=colour,
            )


def _thousands(each: SizeTried) -> float:
    return each.kv_tokens / 1000


def _height(each: SizeTried) -> float:
    return each.value if each.rate is None else each.rate.per_s
