"""Pictures of what KV knows: requests in two dimensions, layers, similarities."""

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure
from sklearn.decomposition import PCA
from sklearn.manifold import TSNE

from dashboards.figures.style import (
    NO_CONTEXT_COLOUR,
    SERIES_COLOURS,
    colour_of,
    finish,
    legend_below,
    new_axes,
    new_figure,
)
from kv_reading.arms import LayerScore
from kv_reading.features import FeatureChoice, FeatureSet, matrix
from kv_reading.kv import Floats

MARKERS = "osD^"
"""Colours repeat after sixteen documents; then the mark is another."""
COLOURS = 16


def scatter(arms: Sequence[tuple[str, FeatureSet]]) -> Figure:
    """Two principal components of each arm side by side, coloured by the question's document."""
    placed = [PCA(2).fit_transform(matrix(features, FeatureChoice())) for _, features in arms]
    return _points(arms, placed, ("first component", "second"))


def neighbours(arms: Sequence[tuple[str, FeatureSet]]) -> Figure:
    """The same by t-SNE, which keeps near requests near; for the eye only."""
    placed = [_by_neighbours(matrix(features, FeatureChoice())) for _, features in arms]
    return _points(arms, placed, ("t-SNE", ""))


def _by_neighbours(rows: Floats) -> Floats:
    perplexity = min(30.0, (len(rows) - 1) / 3)
    placed: Floats = TSNE(perplexity=perplexity, init="pca", random_state=0).fit_transform(rows)
    return placed


def _points(
    arms: Sequence[tuple[str, FeatureSet]], placed: Sequence[Floats], axis_names: tuple[str, str]
) -> Figure:
    figure = new_figure(7.2, 3.9)
    names = list(dict.fromkeys(arms[0][1].topics))
    for place, ((title, features), points) in enumerate(zip(arms, placed, strict=True), start=1):
        axes = new_axes(figure, title, *axis_names, (1, len(arms), place))
        for at, name in enumerate(names):
            chosen = points[features.topics == name]
            mark = MARKERS[at // COLOURS % len(MARKERS)]
            axes.scatter(chosen[:, 0], chosen[:, 1], s=18, color=colour_of(at), marker=mark)
        axes.set_xticks([])
        axes.set_yticks([])
    return figure


def layer_profile(layers: Sequence[LayerScore]) -> Figure:
    """ARI of each layer's keys and values with the interval over seeds, and of mixed labels."""
    figure = new_figure()
    axes = new_axes(figure, "ARI by layer", "layer")
    lines = dict.fromkeys((each.arm, each.part) for each in layers)
    for colour, (arm, part) in zip(SERIES_COLOURS, lines, strict=False):
        line = [each for each in layers if (each.arm, each.part) == (arm, part)]
        at = [each.layer for each in line]
        label = f"{'alone' if arm.startswith('alone') else 'under its context'}, {part}"
        axes.plot(at, [each.score.ari.mean for each in line], "o-", color=colour, label=label)
        low, high = ([getattr(e.score.ari, end) for e in line] for end in ("low", "high"))
        axes.fill_between(at, low, high, color=colour, alpha=0.15, linewidth=0)
    mixed = max(each.score.permuted.high for each in layers)
    axes.axhline(mixed, color=NO_CONTEXT_COLOUR, linestyle=":", label="mixed labels, at most")
    finish(axes)
    axes.set_ylim(-0.05, 1.05)
    legend_below(figure)
    return figure


def heat_map(arms: Sequence[tuple[str, FeatureSet]]) -> Figure:
    """Cosines between the requests of each arm, those of a document side by side."""
    figure = new_figure(7.2, 3.6)
    grid = figure.add_gridspec(1, len(arms))
    for at, (title, features) in enumerate(arms):
        rows = matrix(features, FeatureChoice())
        rows = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-9)
        axes = figure.add_subplot(grid[0, at])
        axes.set_title(title, loc="left")
        image = axes.imshow(rows @ rows.T, vmin=-1, vmax=1, cmap="RdBu_r", interpolation="nearest")
        axes.set_xlabel("request")
        axes.set_ylabel("request" if at == 0 else "")
    figure.colorbar(image, ax=figure.axes, shrink=0.8, label="cosine")
    return figure
