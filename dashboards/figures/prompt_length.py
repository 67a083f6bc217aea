"""Latency against the length of the prompt, with a line through it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dashboards.figures.line_fit import LineFit, fit_line
from dashboards.figures.marks import MOST_VECTOR_MARKS, thinned
from dashboards.figures.requests import DrawnRequests
from dashboards.figures.style import PAGE_IN, SERIES_COLOURS, finish, new_axes, new_figure
from loadgen.runs.columns import Flags, Floats

LEAST_EXPLAINED = 0.5
"""Where a line explains less, something else than length rules: most often the queue."""
_COLOURS = dict(zip(("cached", "computed", "all"), SERIES_COLOURS, strict=False))


@dataclass(frozen=True, slots=True)
class Cloud:
    """DrawnRequests of one kind as points: `x` tokens, `y` TTFT in ms."""

    kind: str
    x: Floats
    y: Floats

    @property
    def fit(self) -> LineFit | None:
        """The line through them, ms per token; None where they do not give one."""
        return fit_line(self.x, self.y)


def clouds(run: DrawnRequests) -> Iterator[Cloud]:
    """TTFT against prompt tokens, apart by whether at least half of the prompt came from a cache,
    as far as the host tells."""
    ok = run.ok & ~np.isnan(run.ttft_ms) & ~np.isnan(run.prompt_tokens)
    share = run.cached_share
    if np.isnan(share[ok]).all():
        yield Cloud("all", run.prompt_tokens[ok], run.ttft_ms[ok])
        return
    cached: Flags = np.nan_to_num(share) >= 0.5
    for kind, part in (("computed", ok & ~cached), ("cached", ok & cached)):
        yield Cloud(kind, run.prompt_tokens[part], run.ttft_ms[part])


def computed_cloud(run: DrawnRequests) -> Cloud | None:
    """TTFT against the prompt tokens that had to be computed; None where the host does not tell."""
    ok = run.ok & ~np.isnan(run.ttft_ms) & ~np.isnan(run.prompt_tokens)
    if np.isnan(run.cached_tokens[ok]).all():
        return None
    computed = run.prompt_tokens - np.nan_to_num(run.cached_tokens)
    return Cloud("all", computed[ok], run.ttft_ms[ok])


def prompt_length(runs: Mapping[str, DrawnRequests]) -> Figure:
    """A row for each run: TTFT against all prompt tokens, and against the computed ones where they
    are known. A line that explains less than `LEAST_EXPLAINED` of the spread is dashed."""
    figure = new_figure(PAGE_IN, 3.0 * len(runs))
    computed = {name: computed_cloud(run) for name, run in runs.items()}
    columns = 2 if any(computed.values()) else 1
    for row, (name, run) in enumerate(runs.items()):
        place = (len(runs), columns, row * columns + 1)
        title = "TTFT against prompt length" + (f": {name}" if len(runs) > 1 else "")
        _panel(figure, place, (title, "prompt tokens"), list(clouds(run)))
        whole = computed[name]
        if whole is not None:
            place = (len(runs), columns, row * columns + 2)
            words = ("TTFT against what had to be computed", "prompt tokens not from a cache")
            _panel(figure, place, words, [whole])
    return figure


def _panel(
    figure: Figure, place: tuple[int, int, int], words: tuple[str, str], drawn: Sequence[Cloud]
) -> None:
    title, x = words
    axes = new_axes(figure, title, x, "ms", place)
    for cloud in drawn:
        _draw(axes, cloud)
    finish(axes)
    if axes.get_legend_handles_labels()[1]:  # there, short prompts that took long would be
        axes.legend(loc="upper left", frameon=False, fontsize=9, markerscale=2)


def _draw(axes: Axes, cloud: Cloud) -> None:
    if not len(cloud.x):
        return
    colour = _COLOURS[cloud.kind]
    kept = thinned(len(cloud.x))
    axes.scatter(
        cloud.x[kept],
        cloud.y[kept],
        s=9 if len(kept) < MOST_VECTOR_MARKS else 3,
        color=colour,
        alpha=0.55,
        linewidths=0,
        rasterized=len(kept) > MOST_VECTOR_MARKS,
        label=None if cloud.kind == "all" else f"mostly {cloud.kind}",
    )
    fit = cloud.fit
    if fit is not None and fit.is_certain:
        _line(axes, fit, np.asarray([cloud.x.min(), cloud.x.max()]), colour)


def _line(axes: Axes, fit: LineFit, ends: Floats, colour: str) -> None:
    slope = 1000 * fit.slope
    figure = f"{slope:,.0f}" if abs(slope) >= 100 else f"{slope:.3g}"
    style = "-" if fit.explained >= LEAST_EXPLAINED else "--"
    label = f"{figure} ms per 1,000 tokens"
    axes.plot(ends, fit.intercept + fit.slope * ends, style, color=colour, lw=2, label=label)
