"""Master and workers as started on several hosts, whose clocks differ."""

import re
import signal
import subprocess
import sys
from pathlib import Path

from run_process import (
    KVSWARM,
    TIMEOUT_S,
    HostProcess,
    Ran,
    arguments,
    wait_until,
    workers_with_rows,
)

from loadgen.targets.hardware import free_ports

EARLY = (sys.executable, str(Path(__file__).with_name("early_clock.py")))
AHEAD_S = 4000
CLOSE_S = 1
"""Two clocks are compared to within half a round trip, which a busy machine makes long."""


def test_a_worker_goes_by_the_masters_clock_and_needs_no_host(
    host: HostProcess, tmp_path: Path
) -> None:
    port, out = str(*free_ports(1)), tmp_path / "run"
    load = ("--model", "normal", "-u", 4, "-r", 4, "--arrivals", "constant", "--rate", 20)
    bind = ("--master-bind-host", "127.0.0.1", "--master-bind-port", port, "--expect-workers", 2)
    join = ["run", "--worker", "--master-host", "127.0.0.1", "--master-port", port]
    commands = [
        arguments(host.url, out, *load, "--master", *bind),
        [*KVSWARM, *join],
        [*EARLY, str(AHEAD_S), *join],
    ]
    swarm = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for command in commands
    ]
    try:
        wait_until(lambda: workers_with_rows(out, 5) == {"0", "1"})
        swarm[0].send_signal(signal.SIGINT)
        outputs = [process.communicate(timeout=TIMEOUT_S)[0] for process in swarm]
    finally:
        for process in swarm:
            process.kill()
    rows = Ran(0, outputs[0], out).rows
    due_s = [float(row["scheduled_s"]) for row in rows]
    assert -CLOSE_S < min(due_s) <= max(due_s) < AHEAD_S / 10, (due_s, outputs)
    told = re.search(r"is ([\d.]+) s ahead of the master's", outputs[0])
    assert told is not None, outputs
    assert abs(float(told[1]) - AHEAD_S) < CLOSE_S
    assert [process.returncode for process in swarm[1:]] == [0, 0], outputs
