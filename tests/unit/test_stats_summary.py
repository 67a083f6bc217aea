import csv
import json
import math
from pathlib import Path
from typing import Any

import pytest

from loadgen.record import COLUMNS, RequestRecord
from loadgen.stats.metrics import summarized
from loadgen.stats.summary import STATISTICS, summarize, write_summary
from loadgen.stats.tally import Tally

METRICS = [each.name for each in summarized()]


def ended(outcome: Any, **changes: Any) -> RequestRecord:
    known = {"sent_s": 1.0, "end_s": 5.0, "e2e_ms": 900.0}
    tokens = {"prompt_tokens": 100, "cached_tokens": 64, "output_tokens": 3}
    given = {**dict.fromkeys(COLUMNS), **known, **tokens, "outcome": outcome, **changes}
    return RequestRecord(**given)


def summary_of(tally: Tally, **changes: Any) -> dict[str, Any]:
    given = {"duration_s": 4.0, "diversity": None, "server": None, "client_saturated": False}
    return summarize(tally, **{**given, **changes})


def busy_tally() -> Tally:
    tally = Tally()
    for number in range(1, 101):
        tally.add(ended("ok", ttft_ms=float(number)), [float(number)] * 2)
    tally.add(ended("timeout"))
    tally.add(ended("cancelled"))
    return tally


def rows_of(directory: Path) -> dict[str, dict[str, str]]:
    with (directory / "summary.csv").open(newline="") as file:
        return {row["metric"]: row for row in csv.DictReader(file)}


def test_the_figures_of_a_run() -> None:
    summary = summary_of(busy_tally())
    assert set(summary["metrics"]) == set(METRICS)
    ttft = summary["metrics"]["ttft_ms"]
    assert tuple(ttft) == STATISTICS
    assert (ttft["count"], ttft["min"], ttft["mean"], ttft["max"]) == (100, 1.0, 50.5, 100.0)
    assert ttft["stddev"] == pytest.approx(math.sqrt((100**2 - 1) / 12))
    assert ttft["p50"] == pytest.approx(50.5, rel=0.005)
    assert ttft["p90"] == pytest.approx(90.1, rel=0.005)
    assert ttft["p95"] == pytest.approx(95.05, rel=0.005)
    assert ttft["p99"] == pytest.approx(99.01, rel=0.005)
    assert summary["metrics"]["itl_ms"]["count"] == 200
    assert (summary["requests"], summary["failed"]) == (102, 1)
    assert summary["outcomes"] == {"ok": 100, "timeout": 1, "cancelled": 1}
    assert (summary["requests_per_s"], summary["output_tokens_per_s"]) == (25.0, 75.0)
    assert summary["cached_share"] == 0.64
    assert summary["client_saturated"] is False


def test_no_data_is_null_and_not_zero() -> None:
    summary = summary_of(Tally(), duration_s=0.0)
    assert summary["metrics"]["ttft_ms"] == {**dict.fromkeys(STATISTICS), "count": 0}
    assert summary["requests_per_s"] is None
    assert summary["output_tokens_per_s"] is None
    assert summary["cached_share"] is None
    assert summary["server"]["hit_rate"] is None
    assert summary["outcomes"] == {"ok": 0}


def test_tokens_per_second_are_unknown_where_the_host_counts_none() -> None:
    tally = Tally()
    tally.add(ended("ok", output_tokens=None))
    summary = summary_of(tally)
    assert (summary["requests_per_s"], summary["output_tokens_per_s"]) == (0.25, None)


def test_both_files_say_the_same(tmp_path: Path) -> None:
    summary = summary_of(
        busy_tally(),
        diversity={"distinct_contexts": 12, "reuse": {"p50": 3.5}, "histogram": [1, 2]},
        server={"hit_rate": 0.25, "counter_reset": True, "peak_running": None},
        client_saturated=True,
        client_saturated_reason="w1 was late, by much.",
    )
    write_summary(tmp_path, summary)
    assert json.loads((tmp_path / "summary.json").read_text()) == summary
    rows = rows_of(tmp_path)
    assert list(rows)[: len(METRICS)] == list(METRICS)
    assert float(rows["e2e_ms"]["p99"]) == summary["metrics"]["e2e_ms"]["p99"]
    assert rows["e2e_ms"]["value"] == ""
    assert rows["requests_per_s"]["value"] == "25.0"
    assert rows["requests_per_s"]["mean"] == ""
    assert rows["outcomes.timeout"]["value"] == "1"
    assert rows["server.counter_reset"]["value"] == "true"
    assert rows["server.peak_running"]["value"] == ""
    assert rows["diversity.reuse.p50"]["value"] == "3.5"
    assert rows["client_saturated_reason"]["value"] == "w1 was late, by much."
    assert "diversity.histogram" not in rows


def test_what_is_not_a_number_is_written_as_null(tmp_path: Path) -> None:
    write_summary(tmp_path, summary_of(Tally(), diversity={"entropy": math.nan, "x": math.inf}))

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    written = json.loads((tmp_path / "summary.json").read_text(), parse_constant=refuse)
    assert written["diversity"] == {"entropy": None, "x": None}
    assert rows_of(tmp_path)["diversity.entropy"]["value"] == ""


def test_an_older_summary_is_replaced_and_nothing_else_is_left(tmp_path: Path) -> None:
    tally = Tally()
    for _ in range(2):
        tally.add(ended("ok"))
        write_summary(tmp_path, summary_of(tally))
    assert json.loads((tmp_path / "summary.json").read_text())["requests"] == 2
    assert {path.name for path in tmp_path.iterdir()} == {"summary.json", "summary.csv"}
