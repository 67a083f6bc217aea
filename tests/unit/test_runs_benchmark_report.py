"""A run as llm-d's benchmark report, held against that project's own schema."""

import json
from pathlib import Path
from typing import Any

import pytest
from llmd_benchmark_report.schema_v0_2 import BenchmarkReportV02
from report_runs import write_report_run

from loadgen.cli.main import main
from loadgen.errors import UsageError
from loadgen.runs.benchmark_report import benchmark_report
from loadgen.runs.json_file import write_json


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_report_run(tmp_path / "run")


def changed(run: Path, name: str, **changes: Any) -> None:
    found = json.loads((run / name).read_text())
    write_json(run / name, {**found, **changes})


def test_figures_are_those_of_the_summary_and_nothing_is_lost(run: Path) -> None:
    summary = json.loads((run / "summary.json").read_text())
    report = BenchmarkReportV02(**benchmark_report(run))
    assert report.results.request_performance is not None
    found = report.results.request_performance.aggregate
    assert found is not None
    assert found.requests is not None
    assert found.latency is not None
    assert found.throughput is not None
    assert (found.requests.total, found.requests.failures) == (summary["requests"], 0)
    for theirs, ours in (
        (found.latency.time_to_first_token, "ttft_ms"),
        (found.latency.time_per_output_token, "tpot_ms"),
        (found.latency.inter_token_latency, "itl_ms"),
        (found.latency.request_latency, "e2e_ms"),
        (found.requests.input_length, "prompt_tokens"),
    ):
        metric = summary["metrics"][ours]
        assert theirs is not None
        assert (theirs.mean, theirs.p50, theirs.p99) == (
            *(metric["mean"], metric["p50"], metric["p99"]),
        )
    assert found.throughput.request_rate is not None
    assert found.throughput.request_rate.mean == summary["requests_per_s"]
    assert report.scenario is not None
    assert report.scenario.load is not None
    assert report.scenario.load.standardized.concurrency == 2
    assert report.scenario.load.native.config == {
        "run": json.loads((run / "run.json").read_text()),
        "summary": summary,
    }
    assert report.results.observability is not None
    (engine,) = report.results.observability.components or ()
    assert engine.aggregate is not None
    assert engine.aggregate.cache_hit_rate is not None
    assert engine.aggregate.cache_hit_rate.mean == summary["server"]["hit_rate"]


def test_what_a_run_does_not_know_is_left_out(run: Path) -> None:
    summary = json.loads((run / "summary.json").read_text())
    metrics = {name: {**each, "count": 0} for name, each in summary["metrics"].items()}
    changed(run, "summary.json", metrics=metrics, server={}, output_tokens_per_s=None)
    (run / "server_metrics.csv").unlink()
    changed(run, "run.json", options={"arrivals": "poisson", "rate": "2.5"}, target=None)
    report = benchmark_report(run)
    BenchmarkReportV02(**report)
    performance = report["results"]["request_performance"]["aggregate"]
    assert performance["latency"] == {}
    assert "output_token_rate" not in performance["throughput"]
    load = report["scenario"]["load"]["standardized"]
    assert (load["rate_qps"], "concurrency" in load) == (2.5, False)
    changed(run, "run.json", options={"arrivals": "poisson", "rate": "2:30,4"})
    assert "rate_qps" not in benchmark_report(run)["scenario"]["load"]["standardized"]


@pytest.mark.parametrize(
    ("name", "changes", "said"),
    [
        ("run.json", {"start_unix_s": 1.75e12}, "start_unix_s is 17500"),
        ("summary.json", {"duration_s": "long"}, "duration_s is 'long'"),
        ("summary.json", {"replicas": [1]}, "replicas is"),
        ("summary.json", {"metrics": None}, "is no finished run"),
        ("run.json", {"target": {"block_size": "x"}}, "target.block_size is 'x'"),
    ],
)
def test_a_run_that_is_not_as_written_is_one_line(
    run: Path, name: str, changes: dict[str, Any], said: str
) -> None:
    found = json.loads((run / name).read_text()) | changes
    kept = {key: value for key, value in found.items() if value is not None}
    (run / name).write_text(json.dumps(kept))
    with pytest.raises(UsageError, match=said) as error:
        benchmark_report(run)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("number", ["NaN", "-Infinity", "1e999"])
def test_a_number_that_is_none_breaks_a_file(run: Path, number: str) -> None:
    text = (run / "summary.json").read_text()
    (run / "summary.json").write_text(
        text.replace('"requests":', f'"odd": {number}, "requests":', 1)
    )
    with pytest.raises(UsageError, match="it holds the number"):
        benchmark_report(run)


def test_the_command_writes_and_renews_it_and_leaves_others_files_alone(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["report", str(run), "--format", "benchmark-report"]
    assert main(words) == main(words) == 0
    file = run / "benchmark_report.json"
    assert capsys.readouterr().out.split() == [str(file), str(file)]
    BenchmarkReportV02(**json.loads(file.read_text()))
    file.write_text('{"mine": true}')
    assert main(words) == 2
    assert json.loads(file.read_text()) == {"mine": True}
    assert "is no report of kvswarm" in capsys.readouterr().err
    assert main([*words, str(tmp_path / "other")]) == 2
    (run / "summary.json").unlink()
    assert main(words) == 2
    (line,) = capsys.readouterr().err.splitlines()[-1:]
    assert "is no finished run" in line
