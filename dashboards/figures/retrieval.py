"""Contexts that had to be found: how long that took, and whether the labels were right."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dashboards.figures.marks import MOST_VECTOR_MARKS, in_bins, thinned, time_edges
from dashboards.figures.style import (
    HALF_PAGE_IN,
    NO_CONTEXT_COLOUR,
    OUTCOME_COLOURS,
    finish,
    legend_below,
    new_axes,
    new_figure,
    plain,
    series_colour,
    shortened,
)
from loadgen.runs.columns import Flags, Floats, Indices

MOST_DOCUMENTS = 12
RIGHT, WRONG, UNKNOWN = "label right", "label wrong", "label not judged"
COLOURS = {
    RIGHT: OUTCOME_COLOURS["ok"],
    WRONG: OUTCOME_COLOURS["http_error"],
    UNKNOWN: NO_CONTEXT_COLOUR,
}
_MARKERS = {RIGHT: "o", WRONG: "X", UNKNOWN: "."}


@dataclass(frozen=True, slots=True)
class RetrievalSeries:
    """Requests in the order of sending. `retrieval_ms` is part of `ttft_ms`; `right` is 1 where the
    label was that of the true document, 0 where it was another, NaN where nobody can tell.
    `document` holds positions of the true one in `documents`."""

    at_s: Floats
    retrieval_ms: Floats
    ttft_ms: Floats
    right: Floats
    document: Indices
    documents: tuple[str, ...]

    @property
    def is_retrieved(self) -> bool:
        """Whether a document was looked for at all."""
        return bool((~np.isnan(self.retrieval_ms)).any())

    @property
    def has_wrong(self) -> bool:
        """Whether any label was not right."""
        return bool((self.right == 0).any())

    def judged(self, kind: str) -> Flags:
        """Which labels are of that kind."""
        if kind == UNKNOWN:
            return np.asarray(np.isnan(self.right))
        return np.asarray(self.right == (1 if kind == RIGHT else 0))


Runs = Mapping[str, RetrievalSeries]


def retrieval(runs: Runs) -> Figure:
    """How long each retrieval took, and below its share of the time to first token in spans of
    time. Of one run a mark says whether the label was right."""
    figure = new_figure(HALF_PAGE_IN[0], 3.6)
    upper = new_axes(figure, "Retrieval over time", "", "ms", (2, 1, 1))
    lower = new_axes(figure, "", "sent at (s)", "share of TTFT", (2, 1, 2))
    for number, (name, run) in enumerate(runs.items()):
        colour = series_colour(number)
        kinds = COLOURS if len(runs) == 1 else {"": colour}
        for kind, of_kind in kinds.items():
            _dots(upper, run, kind, of_kind)
        _share(lower, run, colour, name if len(runs) > 1 else "")
    finish(upper)
    finish(lower)
    lower.sharex(upper)
    lower.set_ylim(0, 1.02)
    legend_below(figure)
    return figure


def _dots(axes: Axes, run: RetrievalSeries, kind: str, colour: str) -> None:
    which = run.judged(kind) if kind else np.ones(len(run.at_s), dtype=np.bool_)
    known = np.flatnonzero(which & ~np.isnan(run.at_s) & ~np.isnan(run.retrieval_ms))
    if not len(known):
        return
    kept = known[thinned(len(known))]
    many = len(run.at_s) > MOST_VECTOR_MARKS
    axes.scatter(
        run.at_s[kept],
        run.retrieval_ms[kept],
        s=3 if many else 14,
        color=colour,
        marker=_MARKERS.get(kind, "o"),
        alpha=0.3 if many else 0.7,
        linewidths=0,
        rasterized=many,
        label=kind or None,
    )


def _share(axes: Axes, run: RetrievalSeries, colour: str, label: str) -> None:
    known = ~np.isnan(run.at_s) & ~np.isnan(run.retrieval_ms) & ~np.isnan(run.ttft_ms)
    if not known.any():
        return
    at_s = run.at_s[known]
    edges = time_edges(float(at_s.min()), float(at_s.max()) + 1e-9)
    bins = in_bins(at_s, edges)
    took, waited = (
        np.bincount(bins, weights=values[known], minlength=len(edges) - 1)
        for values in (run.retrieval_ms, run.ttft_ms)
    )
    shown, middle = waited > 0, (edges[1:] + edges[:-1]) / 2
    axes.plot(middle[shown], took[shown] / waited[shown], ".-", color=colour, label=label or None)


def labels(runs: Runs) -> Figure:
    """Requests about each document by whether their label was right, those with most wrong ones
    first; a panel for each run."""
    rows = {name: list(_rows(run)) for name, run in runs.items()}
    height_in = 0.7 + sum(0.5 + 0.24 * len(each) for each in rows.values())
    figure = new_figure(HALF_PAGE_IN[0], height_in)
    heights = [2 + len(each) for each in rows.values()]
    grid = figure.add_gridspec(len(rows), 1, height_ratios=heights)
    for place, (name, counts) in enumerate(rows.items()):
        axes = figure.add_subplot(grid[place])
        axes.set_title("Labels by document" + (f": {name}" if len(rows) > 1 else ""), loc="left")
        axes.set_xlabel("requests" if place == len(rows) - 1 else "")
        _bars(axes, counts)
    legend_below(figure)
    return figure


def _bars(axes: Axes, rows: list[tuple[str, Mapping[str, int]]]) -> None:
    left: Floats = np.zeros(len(rows))
    for kind, colour in COLOURS.items():
        counts = np.asarray([count[kind] for _, count in rows], dtype=np.float64)
        if counts.any():
            axes.barh(range(len(rows)), counts, left=left, height=0.7, color=colour, label=kind)
            left = left + counts
    finish(axes)
    axes.set_yticks(range(len(rows)), [plain(name) for name, _ in rows])
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.grid(visible=False, axis="y")


def _rows(run: RetrievalSeries) -> Iterator[tuple[str, Mapping[str, int]]]:
    """The documents with most wrong labels, then with most requests, and the rest as one row."""
    counts = {
        kind: np.bincount(run.document[run.judged(kind)], minlength=len(run.documents))
        for kind in COLOURS
    }
    requests = np.sum(list(counts.values()), axis=0)
    order = np.lexsort((-requests, -counts[WRONG]))[: int((requests > 0).sum())]
    kept = order if len(order) <= MOST_DOCUMENTS else order[: MOST_DOCUMENTS - 1]
    for each in kept:
        name = shortened(run.documents[each]) or "no document"
        yield name, {kind: int(found[each]) for kind, found in counts.items()}
    if rest := order[len(kept) :].tolist():
        said = f"{len(rest):,} others"
        yield said, {kind: int(found[rest].sum()) for kind, found in counts.items()}
