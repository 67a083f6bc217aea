"""What the engine and its cache said of themselves over time."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dashboards.figures.marks import time_edges
from dashboards.figures.style import HALF_PAGE_IN, finished, new_axes, new_figure, series_colour
from loadgen.runs.columns import Floats
from loadgen.stats.server_counters import (
    EXTERNAL_HITS,
    PROMPT_HITS,
    PROMPT_SOURCES,
    prompt_sources,
)

MEMORY = {
    "engine_rss_mb": ("engine", "-", 1.0),
    "lmcache_rss_mb": ("LMCache", "--", 1.0),
    "lmcache_l1_memory_usage_bytes": ("in LMCache's memory tier", ":", 1e-6),
    "gpu_memory_mb": ("GPUs", "-.", 1.0),
}
"""Columns with what they are of, how their line is drawn, and their unit in MB."""


@dataclass(frozen=True, slots=True)
class ServerSeries:
    """Columns of `server_metrics.csv` by name, rows in the order of time; NaN is "not known"."""

    at_s: Floats
    columns: Mapping[str, Floats]

    def known(self, name: str) -> Floats | None:
        """A column, None where it is missing or empty."""
        found = self.columns.get(name)
        return None if found is None or np.isnan(found).all() else found


Servers = Mapping[str, ServerSeries | None]


def tells_hits(series: ServerSeries) -> bool:
    """Whether the engine tells where prompt tokens came from, one way or the other."""
    return any(
        all(series.known(name) is not None for name in names)
        for names in (PROMPT_SOURCES, PROMPT_HITS)
    )


def hit_rates(series: ServerSeries) -> tuple[Floats, dict[str, Floats]]:
    """Bounds of spans of time, and in each of them the shares of the prompt tokens that came from
    the prefix cache and from a KV connector; NaN where none were asked for."""
    edges = time_edges(float(series.at_s[0]), float(series.at_s[-1]))
    names = (*PROMPT_SOURCES, *PROMPT_HITS, EXTERNAL_HITS)
    grown = {name: _growth(series, name, edges) for name in names}
    rates = np.asarray(
        [
            _rates({name: None if np.isnan(v[at]) else float(v[at]) for name, v in grown.items()})
            for at in range(len(edges) - 1)
        ],
        dtype=np.float64,
    ).reshape(-1, 2)
    return edges, {"prefix cache": rates[:, 0], "external": rates[:, 1]}


def _rates(rise: Mapping[str, float | None]) -> tuple[float, float]:
    sources = prompt_sources(rise)
    total = sum(sources) if sources else 0.0
    return (sources[1] / total, sources[2] / total) if sources and total else (np.nan, np.nan)


def _growth(series: ServerSeries, name: str, edges: Floats) -> Floats:
    """What a counter rose by in each span; NaN where it fell, which a restart makes it do."""
    values = series.known(name)
    if values is None:
        return np.full(len(edges) - 1, np.nan)
    known = ~np.isnan(values)
    at_edges = np.interp(edges, series.at_s[known], values[known])
    growth = np.diff(at_edges)
    return np.where(growth < 0, np.nan, growth)


def hit_rate(servers: Servers) -> Figure:
    """Hit rate in short spans of time, by the engine's counters."""
    figure = new_figure(*HALF_PAGE_IN)
    axes = new_axes(figure, "Prompt tokens from a cache", "time (s)", "share")
    styles = {"prefix cache": "-", "external": "--"}
    for number, (name, series) in enumerate(servers.items()):
        if series is None or len(series.at_s) < 2:
            continue
        edges, rates = hit_rates(series)
        for tier, values in rates.items():
            if np.nan_to_num(values).any() or (tier == "prefix cache" and values.size):
                shade = number if len(servers) > 1 else list(rates).index(tier)
                axes.plot(
                    ((edges[1:] + edges[:-1]) / 2)[~np.isnan(values)],
                    values[~np.isnan(values)],
                    styles[tier],
                    marker="." if len(edges) < 60 else "",
                    color=series_colour(shade),
                    label=f"{name} {tier}" if len(servers) > 1 else tier,
                )
    axes.set_ylim(0, 1.02)
    return finished(figure)


def kv_usage(servers: Servers) -> Figure:
    """Share of the KV cache in use; below it the requests running (solid) and waiting (dotted)."""
    figure = new_figure(*HALF_PAGE_IN)
    upper = new_axes(figure, "KV cache and queue of the engine", "", "KV in use", (2, 1, 1))
    lower = new_axes(figure, "", "time (s)", "requests", (2, 1, 2))
    for number, (name, series) in enumerate(servers.items()):
        if series is None:
            continue
        colour = series_colour(number)
        several = len(servers) > 1
        _line(upper, series, "kv_cache_usage", colour, "-", name if several else "")
        _line(lower, series, "running", colour, "-", "" if several else "running")
        waits = colour if several else series_colour(1)
        _line(
            lower, series, "waiting", waits, ":" if several else "-", "" if several else "waiting"
        )
    upper.set_ylim(0, 1.02)
    return finished(figure)


def memory(servers: Servers) -> Figure:
    """Memory of the engine's and LMCache's processes and of GPUs, in MB."""
    figure = new_figure(*HALF_PAGE_IN)
    axes = new_axes(figure, "Memory of engine and cache", "time (s)", "MB")
    for number, (name, series) in enumerate(servers.items()):
        if series is None:
            continue
        for place, (column, (said, style, scale)) in enumerate(MEMORY.items()):
            several = len(servers) > 1
            colour = series_colour(number if several else place)
            label = f"{name} {said}" if several else said
            _line(axes, series, column, colour, style, label, scale)
    return finished(figure)


def _line(
    axes: Axes,
    series: ServerSeries,
    column: str,
    colour: str,
    style: str,
    label: str,
    scale: float = 1.0,
) -> None:
    values = series.known(column)
    if values is None:
        return
    shown = ~np.isnan(values)
    axes.plot(
        series.at_s[shown], values[shown] * scale, style, color=colour, label=label or None, lw=1.4
    )
