"""`kvswarm run --gate`: each limit with a tick or a cross, and an exit code for a CI."""

from pathlib import Path
from xml.etree import ElementTree

import pytest
from run_process import HostProcess, Run, run_until, workers_with_rows

GATE = "ttft_ms.p50<=60000, errors<=0%, goodput>=99%"
OBJECTIVE = ("--slo", "ttft_ms<=60000", "--output-tokens", 4, "-u", 2, "-r", 2)


def test_a_run_that_keeps_its_gate_says_so(run: Run, tmp_path: Path) -> None:
    (tmp_path / "gate.conf").write_text(f'gate = "{GATE}"\n')
    config = ("--config", tmp_path / "gate.conf", "--processes", 2)
    ran = run("--model", "normal", *OBJECTIVE, "-t", "1s", *config)
    assert ran.code == 0, ran.output
    assert ran.output.count("\n  ✓ ") == 3
    assert "\ngate passed: 3 of 3 met\n  ✓ ttft_ms.p50<=60000  " in ran.output
    told = ran.json("summary.json")["gate"]
    assert told["met"]
    summary = ran.json("summary.json")
    tokens = sum(int(row["prompt_tokens"]) + int(row["output_tokens"]) for row in ran.rows)
    assert summary["total_tokens_per_s"] == pytest.approx(tokens / summary["duration_s"])
    assert 1 <= summary["peak_concurrency"] <= 2
    assert f"at most {summary['peak_concurrency']} requests at once" in ran.output
    assert told["limits"][0]["samples"] == len(ran.rows)
    assert ElementTree.parse(ran.out / "junit.xml").getroot().get("failures") == "0"


def test_a_broken_limit_fails_the_run_and_a_limit_on_errors_stands_for_max_failures(
    run: Run,
) -> None:
    gate = "errors<=50%, ttft_ms.p50<=0.001"
    ran = run("--model", "flaky", *OBJECTIVE, "-t", "2s", env={"LOCUST_GATE": gate})
    assert ran.code == 1
    told = ran.json("summary.json")["gate"]
    assert [each["met"] for each in told["limits"]] == [True, False]
    assert told["faults"] == []
    assert told["verdict"] == "gate FAILED: 1 of 2 met"
    assert ran.json("run.json")["exit_code"] == 1


def test_a_host_that_fails_everything_passes_no_gate(run: Run) -> None:
    ran = run("--model", "storm", *OBJECTIVE, "-t", "1s", "--gate", "errors<=100%")
    assert ran.code == 1
    assert "gate FAILED: 1 of 1 met, but no request ended ok" in ran.output


def test_a_run_that_is_cut_short_passes_no_gate(host: HostProcess, tmp_path: Path) -> None:
    outs = [tmp_path / "timed", tmp_path / "open"]
    ends = [("-t", "60s"), ()]
    for out, end in zip(outs, ends, strict=True):
        (ran,) = run_until(
            lambda out=out: bool(workers_with_rows(out, 5)),
            host.url,
            [out],
            *("--model", "normal", *OBJECTIVE, *end, "--gate", GATE),
        )
        assert ran.code == (1 if end else 0), ran.output
        assert ("interrupted before its end" in ran.output) == bool(end)
