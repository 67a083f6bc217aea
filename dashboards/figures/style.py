"""How every picture looks: colours, type, axes, and the SVG that comes out."""

import re
import warnings
from collections.abc import Iterator, Sequence
from html import escape
from io import StringIO
from pathlib import Path
from typing import Any, cast

import matplotlib as mpl
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

CONTEXT_COLOURS: tuple[str, ...] = (
    "#3876ee",
    "#cd7a00",
    "#00a27e",
    "#df60b2",
    "#d13904",
    "#3a98cf",
    "#7f5ab2",
    "#55771b",
    "#b93f63",
    "#249aa4",
    "#a86649",
    "#585cd5",
    "#44a11f",
    "#ea5c76",
    "#b15098",
    "#779458",
)
"""Of contexts in the order of their first appearance. Mid-tones: each has a contrast of 3 to 1 or
more with light and with dark pages. The first eight stay apart for the colour-blind."""

NO_CONTEXT_COLOUR = "#848d97"
"""Of requests without a context, and of whatever is not to stand out."""

SERIES_COLOURS: tuple[str, ...] = (
    "#3876ee",
    "#cd7a00",
    "#00a27e",
    "#df60b2",
    "#7f5ab2",
    "#d13904",
    "#249aa4",
    "#b93f63",
)
"""Of lines in one picture: percentiles, tiers of a cache, runs."""

OUTCOME_COLOURS: dict[str, str] = {
    "ok": "#00a27e",
    "http_error": "#d12d56",
    "rejected": "#7a6a00",
    "timeout": "#cd7a00",
    "truncated": "#7f5ab2",
    "connect_error": "#d13904",
    "cancelled": "#848d97",
    "malformed": "#df60b2",
}

PAGE_IN, HALF_PAGE_IN = 11.0, (5.5, 3.0)
"""Width of a picture as wide as a page, and width and height of one that stands beside another."""
INK = "#24292f"
GRID = "#848d97"
_TEXT_PT = 9.0
_LETTERS_PER_IN = 13
_SAVING: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "kvswarm",
    "font.family": ["sans-serif"],
    "font.sans-serif": ["DejaVu Sans"],
    "path.simplify_threshold": 0.2,
}
_REFERENCE = re.compile(r'(?:url\(#|href="#)([^")]+)')
_ASIDE = re.compile(r"<metadata>.*?</metadata>\s*|<style.*?</style>\s*", re.S)
"""The style would hold for the whole page."""
_UNSEEN = re.compile(r'(?<=\n) +(?=<)| transform="rotate\(-0 [^"]*\)"')
_ID = re.compile(r' id="([^"]+)"')
_PLACES = re.compile(r' (?:d|x|y)="[^"]*"|(?:translate|rotate)\([^)]*\)')
_DECIMALS = re.compile(r"\d+\.\d{3,}")


def colour_of(index: int) -> str:
    """The colour of the context that appeared as number `index`, from 0; they repeat."""
    return CONTEXT_COLOURS[index % len(CONTEXT_COLOURS)]


def series_colour(number: int) -> str:
    """The colour of a line by its number in the picture, from 0; they repeat."""
    return SERIES_COLOURS[number % len(SERIES_COLOURS)]


def shortened(name: str) -> str:
    """On one line and without control characters, which no SVG may hold."""
    plain = "".join(each if each.isprintable() else " " for each in name)
    return plain if len(plain) <= 28 else f"{plain[:27]}…"


def new_figure(width_in: float = 7.2, height_in: float = 3.6) -> Figure:
    """An empty figure that lays itself out, bound to no window and no global state. Add axes with
    `new_axes`, or with the figure's own methods."""
    return Figure(figsize=(width_in, height_in), dpi=100, layout="constrained", facecolor="none")


def new_axes(
    figure: Figure,
    title: str = "",
    x: str = "",
    y: str = "",
    place: tuple[int, int, int] = (1, 1, 1),
) -> Axes:
    """Axes in the common dress: `place` is rows, columns, index from 1; `x` and `y` carry units."""
    axes = figure.add_subplot(*place)
    axes.set_title(title, loc="left")
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    return axes


def finish(axes: Axes) -> None:
    """What most axes end with: from 0 upwards, faint lines across, numbers that are written out,
    and a word where nothing was drawn."""
    if not axes.has_data():
        axes.text(0.5, 0.5, "no data", transform=axes.transAxes, ha="center", color=INK)
        axes.set_xticks([])
        axes.set_yticks([])
        return
    axes.grid(axis="y", color=GRID, alpha=0.25)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(StrMethodFormatter("{x:,.6g}"))
        axis.set_minor_formatter(NullFormatter())
        low, high = axis.get_view_interval()
        if getattr(axis.get_transform(), "base", None) == 10 and high < 1000 * low:
            axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    if axes.get_yscale() == "linear":
        axes.set_ylim(bottom=0)


def legend_columns(width_in: float, names: Sequence[str]) -> int:
    """How many of these names stand beside each other on a width."""
    letters = max(map(len, names)) + 7
    return min(len(names), max(1, int(width_in * _LETTERS_PER_IN / letters)))


def legend_below(figure: Figure) -> None:
    """The names of everything drawn in the figure, each once, below it: over the data they would
    hide some."""
    named: dict[str, Artist] = {}
    for axes in figure.axes:
        handles, labels = axes.get_legend_handles_labels()
        named.update(zip(labels, handles, strict=True))
    if named:
        columns = legend_columns(figure.get_figwidth(), list(named))
        figure.legend(
            list(named.values()),
            list(named),
            loc="outside lower left",
            ncols=columns,
            frameon=False,
            fontsize=_TEXT_PT,
            markerscale=2,
        )


def marked_line(
    axes: Axes, points: Sequence[tuple[float, float]], number: int, label: str | None = None
) -> None:
    """Marks with a line through them, in the colour of its number."""
    x, y = [at for at, _ in points], [value for _, value in points]
    axes.plot(x, y, marker="o", color=series_colour(number), label=label)


def finished(figure: Figure) -> Figure:
    """With all its axes as most end, and the names of everything drawn below them."""
    for axes in figure.axes:
        finish(axes)
    legend_below(figure)
    return figure


def svg_text(figure: Figure, label: str = "", salt: str = "kvswarm") -> str:
    """The figure as an `<svg>` element for a page: scales to its box, and its ink is the page's
    text colour. `label` is what it shows, for those who do not see it; `salt` keeps the ids of
    several figures on one page apart. The same figure gives the same text."""
    markup = _drawn(figure, "none", salt)
    markup = _ASIDE.sub("", markup[markup.index("<svg") :])
    markup = re.sub(r' (?:width|height)="[\d.]+pt"', "", markup, count=2)
    markup = markup.replace(INK, "currentColor")
    described = f' role="img" aria-label="{escape(label)}"' if label else ""
    joins = ' style="stroke-linejoin:round;stroke-linecap:butt"'
    return markup.replace("<svg", f"<svg{described}{joins}", 1)


def save_svg(figure: Figure, path: Path | str) -> None:
    """The figure as a file of its own, on white."""
    Path(path).write_text(_drawn(figure, "white", "kvswarm"), encoding="utf-8")


def _drawn(figure: Figure, background: str, salt: str) -> str:
    _dress(figure)
    target = StringIO()
    with mpl.rc_context({**_SAVING, "svg.hashsalt": salt}), warnings.catch_warnings():
        # Text stays text: whoever shows the SVG has the letters that our font has not.
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        figure.savefig(target, format="svg", facecolor=background, metadata={"Date": None})
    markup = target.getvalue()
    # Without what nobody sees or refers to.
    used = set(_REFERENCE.findall(markup))
    markup = _ID.sub(lambda found: found[0] if found[1] in used else "", markup)
    markup = _UNSEEN.sub("", markup)
    return _PLACES.sub(lambda found: _DECIMALS.sub(_to_hundredths, found[0]), markup)


def _to_hundredths(number: re.Match[str]) -> str:
    """Of a point, which nobody sees."""
    return f"{float(number[0]):.2f}".rstrip("0").rstrip(".")


def _dress(figure: Figure) -> None:
    """Sizes and colours of everything in the figure; done last, since artists copy their style
    from matplotlib's global settings when they are made, and those are not ours to change."""
    inner = [cast(Axes, each) for axes in figure.axes for each in axes.child_axes]
    for axes in (*figure.axes, *inner):
        for side, spine in axes.spines.items():
            spine.set_visible(side in ("left", "bottom") and spine.get_visible())
            spine.set_edgecolor(GRID)
        axes.set_axisbelow(True)
        axes.patch.set_alpha(0)
        axes.tick_params(which="both", color=GRID, labelcolor=INK, labelsize=_TEXT_PT)
        for title in (axes.title, axes._left_title, axes._right_title):  # type: ignore[attr-defined]
            title.set_fontsize(_TEXT_PT + 1.5)
        for label in (axes.xaxis.label, axes.yaxis.label):
            label.set_fontsize(_TEXT_PT)
        for text in (axes.title, *_texts(axes)):
            text.set_color(INK)
            text.set_parse_math(False)
    for legend in figure.legends:
        for text in legend.get_texts():
            text.set_color(INK)
            text.set_parse_math(False)


def plain(name: str) -> str:
    """A name beside a tick; a dollar sign in it is no formula."""
    return name.replace("$", r"\$")


def _texts(axes: Axes) -> Iterator[Text]:
    """Names may come from outside: a dollar sign in them is no formula."""
    yield from (axes._left_title, axes._right_title)  # type: ignore[attr-defined]
    yield from (axes.xaxis.label, axes.yaxis.label)
    legend = axes.get_legend()
    if legend is not None:
        legend.get_frame().set_alpha(0)
        legend.get_frame().set_linewidth(0)
        yield from legend.get_texts()
