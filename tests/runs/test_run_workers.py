"""Swarms of several processes: one run directory, nothing lost in silence."""

import csv
import subprocess
from pathlib import Path

import psutil
from run_process import HostProcess, Ran, Run, arguments, wait_until


def test_locusts_statistics_have_every_request_of_every_worker(run: Run) -> None:
    ran = run(
        *("--model", "normal", "-u", 4, "-r", 4, "-t", "2s"),
        *("--output-tokens", 4, "--processes", 2),
    )
    assert ran.code == 0, ran.output
    with (ran.out / "locust_stats.csv").open(newline="") as file:
        rows = {row["Name"]: int(row["Request Count"]) for row in csv.DictReader(file)}
    assert len(ran.rows) > 10
    assert rows["Aggregated"] == rows["TTFT (ms)"] == len(ran.rows)
    assert rows["ITL (ms)"] == 3 * len(ran.rows)


def test_a_lost_worker_fails_the_run(host: HostProcess, tmp_path: Path) -> None:
    out = tmp_path / "run"
    command = arguments(host.url, out, "--model", "normal", "-u", 2, "-r", 2, "-t", "12s")
    process = subprocess.Popen(
        [*command, "--processes", "2"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        wait_until(lambda: len(host.prompts()) >= 4)
        psutil.Process(process.pid).children()[0].kill()
        output, _ = process.communicate(timeout=60)
    finally:
        process.kill()
    ran = Ran(process.returncode, output, out)
    assert ran.json("summary.json")["lost_workers"] == 1, output
    assert "lost" in output
    assert ran.code == 1
    assert {row["outcome"] for row in ran.rows} == {"ok"}


def test_two_runs_with_workers_at_once(host: HostProcess, tmp_path: Path) -> None:
    options = ("--model", "normal", "-u", 2, "-r", 2, "-t", "2s", "--processes", 2)
    running = [
        subprocess.Popen(
            arguments(host.url, tmp_path / name, *options),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for name in ("one", "two")
    ]
    try:
        outputs = [process.communicate(timeout=60)[0] for process in running]
    finally:
        for process in running:
            process.kill()
    assert [process.returncode for process in running] == [0, 0], outputs
    runs = [Ran(0, "", tmp_path / name) for name in ("one", "two")]
    assert sum(len(ran.rows) for ran in runs) == len(host.prompts())
