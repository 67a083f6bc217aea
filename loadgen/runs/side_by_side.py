"""Runs beside each other as a table, from nothing but their directories."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rich.table import Table

from loadgen.runs.json_file import read_json

Figure = Callable[[dict[str, Any]], float | None]


def side_by_side(runs: Mapping[str, Path]) -> Table:
    """A column per run, a row per figure of its `summary.json`; `-` where a run has none."""
    summaries = {name: read_json(path / "summary.json") for name, path in runs.items()}
    table = Table(box=None, pad_edge=False)
    table.add_column("")
    for name in summaries:
        table.add_column(name, justify="right")
    for title, form, figure in ROWS:
        cells = [_cell(form, figure, summary) for summary in summaries.values()]
        if title not in OF_SOME or set(cells) != {"-"}:
            table.add_row(title, *cells)
    return table


def _cell(form: str, figure: Figure, summary: dict[str, Any]) -> str:
    try:
        value = figure(summary)
    except (KeyError, TypeError):
        value = None
    return "-" if value is None else format(value, form)


def _metric(name: str, statistic: str) -> Figure:
    return lambda summary: summary["metrics"][name][statistic]


def _labels_right(summary: dict[str, Any]) -> float | None:
    """Of retrieved contexts; labels without retrieval are right or wrong by design."""
    return None if summary["refused_share"] is None else summary["label_accuracy"]


def _server(name: str) -> Figure:
    return lambda summary: summary["server"][name]


OF_SOME = ("labels right", "retrieval p50 (ms)", "retrieval in TTFT", "within the objective")
"""Rows that are left out where no run has retrieved anything, or had an objective."""

ROWS: tuple[tuple[str, str, Figure], ...] = (
    ("distinct contexts", "d", lambda summary: summary["diversity"]["distinct_contexts"]),
    ("requests ok", "d", lambda summary: summary["outcomes"]["ok"]),
    ("hit rate of the prefix cache", ".1%", _server("hit_rate")),
    ("prompt tokens computed", ",.0f", _server("computed_prompt_tokens")),
    ("labels right", ".1%", _labels_right),
    ("retrieval p50 (ms)", ",.0f", _metric("retrieval_ms", "p50")),
    ("retrieval in TTFT", ".1%", lambda summary: summary["retrieval_share"]),
    ("TTFT p50 (ms)", ",.0f", _metric("ttft_ms", "p50")),
    ("TTFT p95 (ms)", ",.0f", _metric("ttft_ms", "p95")),
    ("end-to-end p50 (ms)", ",.0f", _metric("e2e_ms", "p50")),
    ("makespan p50 (s)", ",.2f", _metric("makespan_s", "p50")),
    ("within the objective", ".1%", lambda summary: summary["goodput_share"]),
    ("requests/s", ".1f", lambda summary: summary["requests_per_s"]),
    ("output tokens/s", ".0f", lambda summary: summary["output_tokens_per_s"]),
)
