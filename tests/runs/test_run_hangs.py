"""Hosts that stop answering: what they left unanswered is late, and a run says so."""

import subprocess
from pathlib import Path
from typing import Any

import pytest
from run_process import KVSWARM, TIMEOUT_S, HostProcess, Ran, Run, run_swarm

OPEN = ("--arrivals", "constant", "--rate", 40, "-u", 40, "--drain", 1, "-t", "4s")
CLOSED = ("-u", 8, "-r", 8, "--drain", 1, "-t", "4s")


def ages_s(ran: Ran, outcome: str) -> list[float]:
    return [
        float(row["end_s"]) - float(row["scheduled_s"])
        for row in ran.rows
        if row["outcome"] == outcome
    ]


def metric(ran: Ran, name: str) -> dict[str, Any]:
    return dict(ran.json("summary.json")["metrics"][name])


@pytest.mark.parametrize("processes", [(), ("--processes", 2)])
def test_what_a_silent_host_left_unanswered_is_late_everywhere(
    run: Run, processes: tuple[object, ...]
) -> None:
    slo = ("--slo", "ttft_ms<=500", "--output-tokens", 4)
    ran = run("--model", "silent", *OPEN, *slo, *processes)
    summary = ran.json("summary.json")
    outcomes = summary["outcomes"]
    late = ages_s(ran, "timeout")
    assert ran.code == 1
    assert outcomes["timeout"] == len(late) >= 80
    assert min(late) > 0.5 >= max(ages_s(ran, "cancelled"), default=0.0)
    assert summary["failed"] == len(late)
    assert summary["goodput_share"] == pytest.approx(
        outcomes["ok"] / (outcomes["ok"] + len(late)), abs=0.1
    )
    assert metric(ran, "ttft_ms")["count"] == outcomes["ok"] + len(late)
    assert metric(ran, "ttft_ms")["p95"] > 2000
    assert "lower bounds" in ran.output
    assert {row["slo_met"] for row in ran.rows if row["outcome"] == "timeout"} == {"false"}


def test_a_gate_does_not_pass_a_host_that_fell_silent(host: HostProcess, tmp_path: Path) -> None:
    base = run_swarm(host.url, tmp_path / "base", "--model", "normal", *CLOSED)
    hung = run_swarm(host.url, tmp_path / "hung", "--model", "silent", *CLOSED)
    assert (base.code, hung.code) == (0, 1)
    gate = ("--gate", "ttft_ms.p95<=+10%, errors<=0.1%")
    command = [*KVSWARM, "compare", str(base.out), str(hung.out), "--vary", "model", *gate]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "lower bounds" in done.stdout + done.stderr


def test_a_reply_that_stalls_after_its_first_token_is_late(run: Run) -> None:
    ran = run("--model", "stalling", *CLOSED)
    late = [row for row in ran.rows if row["outcome"] == "timeout"]
    assert len(late) == 8
    assert all(float(row["ttft_ms"]) < 1000 for row in late)
    assert metric(ran, "e2e_ms")["max"] > 1500 > metric(ran, "ttft_ms")["max"]
    assert ran.code == 1
