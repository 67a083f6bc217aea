"""A host process, and `kvswarm run` against it as a user types it."""

import csv
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loadgen.targets.hardware import free_ports

KVSWARM = (sys.executable, "-m", "loadgen.cli.main")
TIMEOUT_S = 120
"""How long a busy machine may take for what is a matter of seconds."""


@dataclass(frozen=True)
class HostProcess:
    url: str
    process: subprocess.Popen[bytes]

    def prompts(self) -> list[str]:
        return self._ask("log")

    def bodies(self) -> list[dict[str, Any]]:
        return self._ask("bodies")

    def headers(self) -> list[dict[str, str]]:
        return self._ask("headers")

    def listed(self) -> list[str]:
        """The user agents of those who asked for the models."""
        return self._ask("listed")

    def _ask(self, path: str) -> list[Any]:
        with urllib.request.urlopen(f"{self.url}/{path}", timeout=10) as answer:
            return list(json.load(answer))


@dataclass(frozen=True)
class Ran:
    """A finished `kvswarm run`."""

    code: int
    output: str
    out: Path

    @property
    def rows(self) -> list[dict[str, str]]:
        return self.csv("requests.csv")

    def csv(self, name: str) -> list[dict[str, str]]:
        with (self.out / name).open(newline="") as file:
            return list(csv.DictReader(file))

    def json(self, name: str) -> dict[str, Any]:
        return dict(json.loads((self.out / name).read_text()))


Run = Callable[..., Ran]


@contextmanager
def host_process(*kind: str) -> Iterator[HostProcess]:
    """A host; `kind` "vllm" says that it is vLLM."""
    (port,) = free_ports(1)
    command = [sys.executable, str(Path(__file__).with_name("host.py")), str(port), *kind]
    process = subprocess.Popen(command)
    host = HostProcess(f"http://127.0.0.1:{port}", process)
    try:
        wait_until(lambda: _answers(host.url))
        yield host
    finally:
        process.kill()
        process.wait()


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/v1/models", timeout=1):
            return True
    except OSError:
        return False


def wait_until(
    condition: Callable[[], bool], timeout_s: float = TIMEOUT_S, every_s: float = 0.05
) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(every_s)


def arguments(url: str, out: Path, *more: object, file: str = "unordered") -> list[str]:
    # A busy machine must not make a run invalid that is not about saturation.
    calm = ["--max-lag-ms", 60_000]
    fixed = ["run", file, "--host", url, "--out", out, "--tokenizer", "", *calm]
    return [*KVSWARM, *map(str, [*fixed, *more])]


def run_swarm(
    url: str,
    out: Path,
    *more: object,
    env: dict[str, str] | None = None,
    file: str = "unordered",
) -> Ran:
    done = subprocess.run(
        arguments(url, out, *more, file=file),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        env={**os.environ, **(env or {})},
        check=False,
    )
    return Ran(done.returncode, done.stdout + done.stderr, out)


def workers_with_rows(out: Path, least: int) -> set[str]:
    """The workers that have recorded so many requests by now."""
    path = out / "requests.csv"
    rows = Ran(0, "", out).rows if path.is_file() else []
    counts = Counter(row["worker"] for row in rows)
    return {worker for worker, count in counts.items() if count >= least}


def run_until(
    condition: Callable[[], bool],
    url: str,
    outs: Sequence[Path],
    *more: object,
    file: str = "unordered",
) -> list[Ran]:
    """Runs at the same time, all of which Ctrl-C ends once the condition holds."""
    running = [
        subprocess.Popen(
            arguments(url, out, *more, file=file),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for out in outs
    ]
    try:
        wait_until(condition)
        for process in running:
            process.send_signal(signal.SIGINT)
        outputs = [process.communicate(timeout=TIMEOUT_S)[0] for process in running]
    finally:
        for process in running:
            process.kill()
    return [Ran(p.returncode, *rest) for p, *rest in zip(running, outputs, outs, strict=True)]
