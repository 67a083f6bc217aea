"""Hit rate against cache size: what is predicted, and what was measured."""

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from dashboards.figures.style import (
    NO_CONTEXT_COLOUR,
    SERIES_COLOURS,
    finish,
    legend_below,
    new_axes,
    new_figure,
    series_colour,
)
from loadgen.locality.curve import CacheCurve

PREDICTED, MEASURED = SERIES_COLOURS[0], SERIES_COLOURS[1]
KILO, MEGA = 1e3, 1e6

Point = tuple[int, float, str]
"""Tokens, hit rate from 0 to 1, and the name of the run."""


def draw(
    curve: CacheCurve, measured: Sequence[Point] = (), bytes_per_token: int | None = None
) -> Figure:
    """The curve through its points, the bound, the size that is enough, and the runs. Sizes are in
    thousands of tokens, and in MB above where the bytes of one are known."""
    figure, axes = _new()
    _curve(axes, curve, PREDICTED, "predicted", _widest(measured))
    axes.axhline(curve.bound, color=NO_CONTEXT_COLOUR, linewidth=1, linestyle=":", label="bound")
    _knee(axes, curve.knee.enough_tokens)
    _points(axes, measured, MEASURED, "measured")
    return _finished(figure, axes, bytes_per_token)


def draw_orders(
    orders: Sequence[tuple[CacheCurve, Sequence[Point]]], bytes_per_token: int | None = None
) -> Figure:
    """The same of several orders of requests, each curve in the colour of its runs; one alone is
    drawn with its bound."""
    if len(orders) == 1:
        return draw(*orders[0], bytes_per_token)
    figure, axes = _new()
    widest = max(_widest(measured) for _, measured in orders)
    for place, (curve, measured) in enumerate(orders, 1):
        colour = series_colour(place - 1)
        _curve(axes, curve, colour, f"order {place}, predicted", widest)
        _points(axes, measured, colour)
    axes.plot([], [], "o", color=NO_CONTEXT_COLOUR, label="measured")
    _knee(axes, max(curve.knee.enough_tokens for curve, _ in orders))
    return _finished(figure, axes, bytes_per_token)


def _new() -> tuple[Figure, Axes]:
    figure = new_figure()
    return figure, new_axes(figure, "Prefix-cache hit rate", "KV cache, thousands of tokens")


def _finished(figure: Figure, axes: Axes, bytes_per_token: int | None) -> Figure:
    finish(axes)
    axes.set_ylim(0, 1)
    axes.set_xlim(left=0)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    legend_below(figure)
    if bytes_per_token is not None:
        _mb_axis(axes, bytes_per_token)
    return figure


def _widest(measured: Sequence[Point]) -> int:
    return max((tokens for tokens, _, _ in measured), default=0)


def _curve(axes: Axes, curve: CacheCurve, colour: str, label: str, to_tokens: int) -> None:
    """Drawn to `to_tokens` where its points end before."""
    further = to_tokens > curve.points[-1].tokens
    beyond = [(to_tokens, curve.at(to_tokens).hit_rate)] if further else []
    points = [*((each.tokens, each.hit_rate) for each in curve.points), *beyond]
    tokens, rates = zip(*points, strict=True)
    sizes = [each / KILO for each in tokens]
    axes.plot(sizes, rates, "-", color=colour, linewidth=1.8, label=label)


def _knee(axes: Axes, enough: int) -> None:
    label = f"enough: {enough} tokens"
    axes.axvline(enough / KILO, color=NO_CONTEXT_COLOUR, linewidth=1, linestyle="--", label=label)


def _points(axes: Axes, measured: Sequence[Point], colour: str, label: str = "") -> None:
    if measured:
        tokens, rates, _ = zip(*measured, strict=True)
        sizes = [each / KILO for each in tokens]
        axes.plot(sizes, rates, "o", color=colour, markersize=6, label=label or None)


def _mb_axis(axes: Axes, bytes_per_token: int) -> None:
    mb_per_unit = bytes_per_token * KILO / MEGA

    def to_mb(units: Any) -> Any:
        return units * mb_per_unit

    def to_units(mb: Any) -> Any:
        return mb / mb_per_unit

    axes.secondary_xaxis("top", functions=(to_mb, to_units)).set_xlabel("MB")
