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

PAUSE_S, LIMIT_MS = 1.8, 1000
OPEN = ("-u", 0, "--arrivals", "constant", "--rate", 40)
CLOSED = ("-u", 4)


def processes(parent: psutil.Process) -> list[psutil.Process]:
    return [parent, *parent.children(recursive=True)]


def run_paused(host: HostProcess, out: Path, *more: Any, worker: bool = False) -> Ran:
    """A run that is stopped for a while, or one worker of it."""
    given = ("--model", "normal", "-t", "3s", "--output-tokens", 4, "--max-lag-ms", LIMIT_MS)
    command = arguments(host.url, out, *given, *more)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        try:
            wait_until(lambda: len(host.prompts()) > 20)
            paused = processes(psutil.Process(process.pid))
            if worker:
                paused = paused[-1:]
            for each in paused:
                os.kill(each.pid, signal.SIGSTOP)
            time.sleep(PAUSE_S)
            for each in paused:
                os.kill(each.pid, signal.SIGCONT)
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
