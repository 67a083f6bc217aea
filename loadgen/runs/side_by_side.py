"""Runs beside each other as a table, from nothing but their directories."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.table import Table

from loadgen.runs.json_file import read_json, value_at


def side_by_side(runs: Mapping[str, Path]) -> Table:
    """A column per run, a row per figure of its `summary.json`; `-` where a run has none."""
    summaries = {name: read_json(path / "summary.json") for name, path in runs.items()}
    table = Table(box=None, pad_edge=False)
    table.add_column("")
    for name in summaries:
        table.add_column(name, justify="right")
    for title, form, place in ROWS:
        cells = [_cell(form, _told(summary, place)) for summary in summaries.values()]
        if title not in OF_SOME or set(cells) != {"-"}:
            table.add_row(title, *cells)
    return table


def _told(summary: Mapping[str, Any], place: str) -> Any:
    """Labels without retrieval are right or wrong by design."""
    needed = value_at(summary, NEEDED.get(place, place))
    return None if needed is None else value_at(summary, place)


def _cell(form: str, value: float | None) -> str:
    return "-" if value is None else format(value, form)


OF_SOME = ("labels right", "retrieval p50 (ms)", "retrieval in TTFT", "within the objective")
"""Rows that are left out where no run has retrieved anything, or had an objective."""

NEEDED = {"label_accuracy": "refused_share"}

ROWS: tuple[tuple[str, str, str], ...] = (
    ("distinct contexts", "d", "diversity.distinct_contexts"),
    ("requests ok", "d", "outcomes.ok"),
    ("hit rate of the prefix cache", ".1%", "server.hit_rate"),
    ("prompt tokens computed", ",.0f", "server.computed_prompt_tokens"),
    ("labels right", ".1%", "label_accuracy"),
    ("retrieval p50 (ms)", ",.0f", "metrics.retrieval_ms.p50"),
    ("retrieval in TTFT", ".1%", "retrieval_share"),
    ("TTFT p50 (ms)", ",.0f", "metrics.ttft_ms.p50"),
    ("TTFT p95 (ms)", ",.0f", "metrics.ttft_ms.p95"),
    ("end-to-end p50 (ms)", ",.0f", "metrics.e2e_ms.p50"),
    ("makespan p50 (s)", ",.2f", "metrics.makespan_s.p50"),
    ("within the objective", ".1%", "goodput_share"),
    ("requests/s", ".1f", "requests_per_s"),
    ("output tokens/s", ".0f", "output_tokens_per_s"),
)
