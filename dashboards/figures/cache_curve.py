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
    figure = new_figure()
    axes = new_axes(figure, "Prefix-cache hit rate", "KV cache, thousands of tokens")
    _curve(axes, curve)
    _knee(axes, curve)
    if measured:
        tokens, rates, _ = zip(*measured, strict=True)
        sizes = [each / KILO for each in tokens]
        axes.plot(sizes, rates, "o", color=MEASURED, markersize=6, label="measured")
    finish(axes)
    axes.set_ylim(0, 1)
    axes.set_xlim(left=0)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    legend_below(figure)
    if bytes_per_token is not None:
        _mb_axis(axes, bytes_per_token)
    return figure


def _curve(axes: Axes, curve: CacheCurve) -> None:
    tokens = [point.tokens / KILO for point in curve.points]
    rates = [point.hit_rate for point in curve.points]
    axes.plot(tokens, rates, "-", color=PREDICTED, linewidth=1.8, label="predicted")
    axes.axhline(curve.bound, color=NO_CONTEXT_COLOUR, linewidth=1, linestyle=":", label="bound")


def _knee(axes: Axes, curve: CacheCurve) -> None:
    enough = curve.knee.enough_tokens
    label = f"enough: {enough} tokens"
    axes.axvline(enough / KILO, color=NO_CONTEXT_COLOUR, linewidth=1, linestyle="--", label=label)


def _mb_axis(axes: Axes, bytes_per_token: int) -> None:
    mb_per_unit = bytes_per_token * KILO / MEGA

    def to_mb(units: Any) -> Any:
        return units * mb_per_unit

    def to_units(mb: Any) -> Any:
        return mb / mb_per_unit

    axes.secondary_xaxis("top", functions=(to_mb, to_units)).set_xlabel("MB")
