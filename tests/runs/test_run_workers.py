"""Swarms of several processes: one run directory, nothing lost in silence."""

import csv
import subprocess
from pathlib import Path

import psutil
from run_process import (
    HostProcess,
    Ran,
    Run,
    arguments,
    run_until,
    wait_until,
    workers_with_rows,
)


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
    summary = ran.json("summary.json")
    assert (summary["lost_workers"], summary["lost_share"]) == (1, 0.5), output
    assert "of 2 lost at" in output
    assert "a share of 50% of the requests is not sent" in output
    assert ran.code == 1
    assert {row["outcome"] for row in ran.rows} == {"ok"}


STARVED = """
import gevent
from gevent.monkey import get_original
from locust import events
from locustfiles.unordered import UnorderedUser

@events.test_start.add_listener
def starve(environment, **_):
    if hasattr(environment.runner, "worker_index"):
        gevent.spawn_later(1, get_original("time", "sleep"), 7)
"""


def test_workers_that_are_starved_for_seconds_lose_no_row(
    run: Run, host: HostProcess, tmp_path: Path
) -> None:
    (tmp_path / "starved.py").write_text(STARVED)
    ran = run(
        *("--model", "normal", "-u", 4, "-r", 4, "-t", "3s", "--processes", 2),
        file=str(tmp_path / "starved.py"),
    )
    assert ran.code in (0, 5), ran.output
    assert ran.json("summary.json")["lost_workers"] == 0, ran.output
    assert len(ran.rows) == len(host.prompts())


def test_two_runs_with_workers_at_once(host: HostProcess, tmp_path: Path) -> None:
    outs = [tmp_path / name for name in ("one", "two")]
    options = ("--model", "normal", "-u", 2, "-r", 2, "--processes", 2)
    runs = run_until(
        lambda: all(workers_with_rows(out, 5) == {"0", "1"} for out in outs),
        *(host.url, outs, *options),
    )
    assert [ran.code for ran in runs] == [0, 0], runs
    assert sum(len(ran.rows) for ran in runs) == len(host.prompts())
