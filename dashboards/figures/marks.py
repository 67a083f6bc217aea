"""How much is drawn of much: a page must stay small whatever the run was."""

import numpy as np

from loadgen.runs.columns import Floats, Indices
from loadgen.stats.sketch import least_values

MOST_VECTOR_MARKS = 1500
"""More than these become one image inside the SVG."""
MOST_MARKS = 50_000
MOST_BINS = 120
_WIDTHS_S = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200, 86400)


def thinned(count: int, most: int = MOST_MARKS) -> Indices:
    """Positions of at most `most` out of `count`, evenly spaced: all of them where they fit."""
    if count <= most:
        return np.arange(count)
    return np.linspace(0, count - 1, most).astype(np.intp)


def time_edges(first_s: float, last_s: float) -> Floats:
    """Bounds of equal bins that cover the span, at most `MOST_BINS`, of a round width from 1 s."""
    span_s = max(last_s - first_s, 1e-9)
    width_s = next(
        (each for each in _WIDTHS_S if span_s / each <= MOST_BINS), span_s / (MOST_BINS - 1)
    )
    start_s = np.floor(first_s / width_s) * width_s
    bins = max(np.ceil((last_s - start_s) / width_s), 1)
    return np.asarray(start_s + np.arange(bins + 1) * width_s)


def in_bins(at_s: Floats, edges: Floats) -> Indices:
    """The bin of each moment, as a position; moments must be known."""
    found = np.searchsorted(edges, at_s, side="right") - 1
    return np.clip(found, 0, max(len(edges) - 2, 0))


def covered_s(edges: Floats, first_s: float, last_s: float) -> Floats:
    """How much of each bin lies within the span: the outer ones are not full."""
    return np.asarray(np.minimum(edges[1:], last_s) - np.maximum(edges[:-1], first_s))


def binned_quantiles(at_s: Floats, values: Floats, edges: Floats, quantiles: Floats) -> Floats:
    """Quantiles of the values in each bin, as (quantiles, bins); NaN where a bin has too few."""
    known = ~np.isnan(at_s) & ~np.isnan(values)
    values, bins = values[known], in_bins(at_s[known], edges)
    order = np.argsort(bins, kind="stable")
    parts = np.split(values[order], np.searchsorted(bins[order], np.arange(1, len(edges) - 1)))
    least = np.asarray([least_values(q) for q in quantiles.tolist()])
    columns = [
        np.where(len(part) < least, np.nan, np.quantile(part if len(part) else [0.0], quantiles))
        for part in parts
    ]
    return np.asarray(columns).T
