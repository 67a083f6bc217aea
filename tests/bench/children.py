"""Child processes pinned to a core, one of them metered; all are ended by their process id."""

import contextlib
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
import psutil

TICK_S = 0.02
MB = 1_000_000
HERE = Path(__file__).parent
CORES = sorted(os.sched_getaffinity(0)) if sys.platform == "linux" else [0]
CLIENT_CORE, SERVER_CORE = CORES[0], CORES[-1]
"""Two different cores where there are two, so that the client's limit is what is measured."""


def pin(core: int) -> None:
    """Keep this process on one core, where the system can (Linux)."""
    if sys.platform == "linux":
        os.sched_setaffinity(0, {core})


def start(arguments: list[str], core: int, **settings: Any) -> subprocess.Popen[bytes]:
    """A Python child on one core."""
    command = [sys.executable, *arguments]
    return subprocess.Popen(command, preexec_fn=lambda: pin(core), **settings)


@dataclass(frozen=True, slots=True)
class Server:
    """A running mock server."""

    url: str

    def log(self) -> dict[str, Any]:
        """What it has noted so far; see mock_server.Log."""
        with urllib.request.urlopen(f"{self.url}/log", timeout=30) as answer:
            return dict(orjson.loads(answer.read()))


@contextlib.contextmanager
def mock_server(tokens: int, gap_ms: float) -> Iterator[Server]:
    """A mock server of its own for one run, killed at the exit."""
    arguments = [str(HERE / "mock_server.py"), "--tokens", str(tokens), "--gap-ms", str(gap_ms)]
    with start(arguments, SERVER_CORE, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            yield Server(f"http://127.0.0.1:{int(process.stdout.readline())}")
        finally:
            process.kill()


@dataclass(slots=True)
class Metered:
    """A finished child: when it was started, its CPU seconds and resident memory over time.

    `cpu` holds (`time.perf_counter()` seconds, user + system CPU seconds so far) of the child,
    which does all its work itself. `total_cpu_s` is the kernel's account at its end, of the child
    and its descendants.
    """

    started_at: float
    exit_code: int = -1
    total_cpu_s: float = 0.0
    peak_rss_mb: float = 0.0
    cpu: list[tuple[float, float]] = field(default_factory=list)

    def cpu_at(self, at: float) -> float:
        """CPU seconds used until that moment, interpolated between two readings."""
        before = max((row for row in self.cpu if row[0] <= at), default=(self.started_at, 0.0))
        after = min((row for row in self.cpu if row[0] > at), default=before)
        if after[0] == before[0]:
            return before[1]
        share = (at - before[0]) / (after[0] - before[0])
        return before[1] + share * (after[1] - before[1])


def run_metered(arguments: list[str], log: Path, timeout_s: float) -> Metered:
    """Run a child on the client's core to its end. Raises TimeoutError, and then kills it."""
    with log.open("wb") as output:
        metered = Metered(time.perf_counter())
        process = start(arguments, CLIENT_CORE, stdout=output, stderr=subprocess.STDOUT)
        try:
            _follow(process, metered, timeout_s)
        finally:
            if process.returncode is None:
                process.kill()
                process.wait()
    return metered


def _follow(process: subprocess.Popen[bytes], metered: Metered, timeout_s: float) -> None:
    root = psutil.Process(process.pid)
    while time.perf_counter() - metered.started_at < timeout_s:
        _read(root, metered)
        pid, status, usage = os.wait4(process.pid, os.WNOHANG)
        if pid:
            process.returncode = metered.exit_code = os.waitstatus_to_exitcode(status)
            metered.total_cpu_s = usage.ru_utime + usage.ru_stime
            return
        time.sleep(TICK_S)
    raise TimeoutError(f"{' '.join(process.args)} took more than {timeout_s:g} s")  # type: ignore[arg-type]


def _read(process: psutil.Process, metered: Metered) -> None:
    with contextlib.suppress(psutil.Error), process.oneshot():
        times = process.cpu_times()
        metered.cpu.append((time.perf_counter(), times.user + times.system))
        metered.peak_rss_mb = max(metered.peak_rss_mb, process.memory_info().rss / MB)
