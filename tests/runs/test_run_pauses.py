"""A client that stood still says so, whatever its figures look like."""

import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from run_process import TIMEOUT_S, HostProcess, Ran, arguments, wait_until

from loadgen.runs.exit_code import FAILED, SATURATED

PAUSE_S, BETWEEN_S, LIMIT_MS = 1.8, 0.11, 1000
OPEN = ("-u", 0, "--arrivals", "constant", "--rate", 40)
CLOSED = ("-u", 4)


def processes(parent: psutil.Process) -> list[psutil.Process]:
    return [parent, *parent.children(recursive=True)]


def run_paused(
    host: HostProcess,
    out: Path,
    *more: Any,
    worker: bool = False,
    pauses: tuple[float, ...] = (PAUSE_S,),
) -> Ran:
    """A run that is stopped for a while, or several times, or one worker of it."""
    given = ("--model", "normal", "-t", "3s", "--output-tokens", 4, "--max-lag-ms", LIMIT_MS)
    command = arguments(host.url, out, *given, *more)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        try:
            wait_until(lambda: len(host.prompts()) > 20)
            paused = processes(psutil.Process(process.pid))
            if worker:
                paused = paused[-1:]
            for pause_s in pauses:
                for each in paused:
                    os.kill(each.pid, signal.SIGSTOP)
                time.sleep(pause_s)
                for each in paused:
                    os.kill(each.pid, signal.SIGCONT)
                time.sleep(BETWEEN_S)
            output = process.communicate(timeout=TIMEOUT_S)[0]
        finally:
            process.kill()
    return Ran(process.returncode, output.decode(), out)


@pytest.mark.parametrize(
    ("load", "worker"),
    [(OPEN, False), (CLOSED, False), ((*CLOSED, "--processes", 2), True)],
    ids=["open", "closed", "one of two workers"],
)
def test_a_pause_makes_a_run_invalid(
    host: HostProcess, tmp_path: Path, load: Any, worker: bool
) -> None:
    ran = run_paused(host, tmp_path / "run", *load, worker=worker)
    # On a busy machine the master may believe that the worker is lost.
    assert ran.code in (SATURATED, FAILED) if worker else ran.code == SATURATED, ran.output
    summary = ran.json("summary.json")
    assert summary["client_saturated"] is True
    assert "stood still for" in summary["client_saturated_reason"]
    longest = max(ran.csv("client_metrics.csv"), key=lambda row: float(row["elapsed_s"]))
    assert float(longest["elapsed_s"]) > PAUSE_S


def test_pauses_shorter_than_any_limit_are_told_by_the_tokens_that_waited(
    host: HostProcess, tmp_path: Path
) -> None:
    long = ("-u", 4, "--output-tokens", 30, "-t", "5s", "--max-lag-ms", 100)
    ran = run_paused(host, tmp_path / "run", *long, pauses=(0.09,) * 18)
    assert ran.code == SATURATED, ran.output
    summary, described = ran.json("summary.json"), ran.json("run.json")
    assert "that their times are not their own" in summary["client_saturated_reason"]
    assert "are not their own, as they were read late" in ran.output
    times = summary["token_times"]
    assert 0.02 < times["late_share"] <= times["shared_share"]
    assert times["late_mean_ms"] > 20
    assert described["token_clock"] == times["clock"] == "kernel"
