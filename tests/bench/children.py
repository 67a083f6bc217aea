"""Child processes pinned to a core, one of them metered; all are ended by their process id."""

import contextlib
import os
import signal
import ssl
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
import psutil

TICK_S = 0.02
LOOK_S = 0.5
MB = 1_000_000
HERE = Path(__file__).parent
CORES = sorted(os.sched_getaffinity(0)) if sys.platform == "linux" else [0]
CLIENT_CORE, SERVER_CORE = CORES[0], CORES[-1]
"""Two different cores where there are two, so that the client's limit is what is measured."""
CERTIFICATE = HERE.parent / "data" / "tls" / "localhost.pem"
"""What the mock server shows where it speaks https, and what clients are to trust."""


def pin(*cores: int) -> None:
    """Keep this process on one or some cores, where the system can (Linux)."""
    if sys.platform == "linux":
        os.sched_setaffinity(0, cores)


def start(command: list[str], *cores: int, **settings: Any) -> subprocess.Popen[bytes]:
    """A child on one or some cores."""
    return subprocess.Popen(command, preexec_fn=lambda: pin(*cores), **settings)


@dataclass(frozen=True, slots=True)
class Server:
    """A running mock server."""

    url: str
    pid: int

    def log(self) -> dict[str, Any]:
        """What it has noted so far; see mock_server.Log."""
        trusted = ssl.create_default_context(cafile=CERTIFICATE)
        with urllib.request.urlopen(f"{self.url}/log", timeout=30, context=trusted) as answer:
            return dict(orjson.loads(answer.read()))


@contextlib.contextmanager
def mock_server(
    tokens: int, gap_ms: float, counts: bool = False, tls: bool = False
) -> Iterator[Server]:
    """A mock server of its own for one run, killed at the exit; see mock_server.Counts."""
    arguments = [str(HERE / "mock_server.py"), "--tokens", str(tokens), "--gap-ms", str(gap_ms)]
    arguments += ["--counts"] if counts else []
    arguments += ["--tls", str(CERTIFICATE)] if tls else []
    origin = "https://localhost" if tls else "http://127.0.0.1"
    with start([sys.executable, *arguments], SERVER_CORE, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            yield Server(f"{origin}:{int(process.stdout.readline())}", process.pid)
        finally:
            process.kill()


@dataclass(slots=True)
class Metered:
    """A finished child: when it was started, its CPU seconds and resident memory over time.

    `cpu` holds (`time.perf_counter()` seconds, user + system CPU seconds so far) of the child and
    its descendants, `own_cpu` of it alone, memory is the sum over them. `total_cpu_s` is the
    kernel's account at the end.
    """

    started_at: float
    exit_code: int = -1
    total_cpu_s: float = 0.0
    peak_rss_mb: float = 0.0
    cpu: list[tuple[float, float]] = field(default_factory=list)
    own_cpu: list[tuple[float, float]] = field(default_factory=list)

    def cpu_at(self, at: float, own: bool = False) -> float:
        """CPU seconds used until that moment, interpolated between two readings."""
        rows = self.own_cpu if own else self.cpu
        before = max((row for row in rows if row[0] <= at), default=(self.started_at, 0.0))
        after = min((row for row in rows if row[0] > at), default=before)
        if after[0] == before[0]:
            return before[1]
        share = (at - before[0]) / (after[0] - before[0])
        return before[1] + share * (after[1] - before[1])


def run_metered(
    command: list[str],
    log: Path,
    timeout_s: float,
    environment: Mapping[str, str],
    cores: Sequence[int] = (CLIENT_CORE,),
) -> Metered:
    """Run a child to its end, on the client's core. Raises TimeoutError, and then kills it."""
    trusted = {"SSL_CERT_FILE": str(CERTIFICATE)}
    settings = {"env": {**os.environ, **trusted, **environment}, "start_new_session": True}
    with log.open("wb") as output:
        metered = Metered(time.perf_counter())
        process = start(command, *cores, stdout=output, stderr=subprocess.STDOUT, **settings)
        try:
            _follow(process, metered, timeout_s)
        finally:
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    return metered


def _follow(process: subprocess.Popen[bytes], metered: Metered, timeout_s: float) -> None:
    tree = _Tree(process.pid)
    while time.perf_counter() - metered.started_at < timeout_s:
        tree.read(metered)
        pid, status, usage = os.wait4(process.pid, os.WNOHANG)
        if pid:
            process.returncode = metered.exit_code = os.waitstatus_to_exitcode(status)
            metered.total_cpu_s = usage.ru_utime + usage.ru_stime
            return
        time.sleep(TICK_S)
    raise TimeoutError(f"{process.args} took more than {timeout_s:g} s")


class _Tree:
    """A process and its descendants; whoever has ended keeps the CPU time last seen."""

    def __init__(self, pid: int) -> None:
        self._root = psutil.Process(pid)
        self._cpu_s: dict[int, float] = {}
        self._members = [self._root]
        self._looked_at = 0.0

    def read(self, metered: Metered) -> None:
        """Note CPU and memory; new descendants are looked for twice a second."""
        now = time.perf_counter()
        if now - self._looked_at > LOOK_S:
            self._looked_at = now
            with contextlib.suppress(psutil.Error):
                self._members = [self._root, *self._root.children(recursive=True)]
        rss_mb = sum(map(self._read_one, self._members))
        metered.cpu.append((now, sum(self._cpu_s.values())))
        metered.own_cpu.append((now, self._cpu_s.get(self._root.pid, 0.0)))
        metered.peak_rss_mb = max(metered.peak_rss_mb, rss_mb)

    def _read_one(self, process: psutil.Process) -> float:
        try:
            with process.oneshot():
                times = process.cpu_times()
                self._cpu_s[process.pid] = times.user + times.system
                return float(process.memory_info().rss) / MB
        except psutil.Error:
            return 0.0
