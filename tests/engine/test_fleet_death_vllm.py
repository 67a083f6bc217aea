"""`kvswarm run --target vllm-fleet`, of which one engine is killed in mid-run."""

import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1300)]

START_TIMEOUT_S = 600


def command(out: Path) -> list[str]:
    small = ["--contexts", 3, "--context-tokens", 400, "--output-tokens", 8, "--kv-tokens", 2560]
    fleet = ["--target", "vllm-fleet", "--router", "round_robin", "--max-lag-ms", 60_000]
    run = ["run", "unordered", *fleet, *small, "-u", 4, "-r", 4, "-t", "30s", "--out", out]
    return [sys.executable, "-m", "loadgen.cli.main", *map(str, run)]


def rows(out: Path) -> list[dict[str, str]]:
    path = out / "requests.csv"
    if not path.is_file():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def told(out: Path, name: str) -> dict[str, Any]:
    return dict(json.loads((out / name).read_text()))


def test_the_other_engine_serves_on_and_the_outage_is_told(tmp_path: Path) -> None:
    out = tmp_path / "run"
    process = subprocess.Popen(
        command(out),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        deadline = time.monotonic() + START_TIMEOUT_S
        while not {"vllm-1", "vllm-2"} <= {row["engine"] for row in rows(out)}:
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline, "no requests"
            time.sleep(0.2)
        pid = told(out, "run.json")["target"]["pids"]["vllm-2"][0]
        os.kill(pid, signal.SIGKILL)
        printed, said = process.communicate(timeout=120)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 3, said
    assert "vllm-2 has died: the run goes on with the other engines" in said
    assert "ENGINE DIED: vllm-2 was ended by SIGKILL at " in printed
    summary = told(out, "summary.json")
    (death,) = summary["engine_deaths"]
    every = rows(out)
    failed = [row for row in every if row["outcome"] not in ("ok", "cancelled")]
    assert len(every) == summary["requests"]
    assert death["failed"] == len(failed) > 0
    assert all(row["error"] for row in failed)
    assert death["served_again_s"] > 0
    last_s = max(float(row["end_s"]) for row in failed)
    later = [row for row in every if row["outcome"] == "ok" and float(row["sent_s"]) > last_s]
    assert {row["engine"] for row in later} == {"vllm-1"}
    assert summary["replicas"]["engines"]["vllm-2"]["computed_prompt_tokens"] is not None
    assert summary["server"]["server_cpu_ms_per_token"] > 0
