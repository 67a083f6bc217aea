"""A real Locust process on loopback, started from a locustfile's text."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

import psutil

from loadgen.targets.hardware import free_ports

DEADLINE_S = 60.0
"""How long a slow machine may take for what is a matter of a second or two."""

PRELUDE = """
import asyncio, contextvars, logging, os, signal, sys, threading, time
import gevent.util, psutil
from locust import LoadTestShape, constant, events, task
from locust.exception import RescheduleTask, RescheduleTaskImmediately, StopTest, StopUser
from loadgen.swarm.user import AsyncUser

gevent.signal_handler(signal.SIGUSR2, gevent.util.print_run_info)

def note(*words):
    with open(os.environ["NOTES"], "a") as notes:
        print(*words, file=notes)

def noted(line):
    with open(os.environ["NOTES"]) as notes:
        return notes.read().splitlines().count(line)
"""


class LocustProcess:
    """One Locust; its users report by lines in a file, which `notes` reads."""

    def __init__(self, folder: Path, locustfile: str, *options: str, **variables: str) -> None:
        self._notes = folder / "notes"
        self._notes.touch()
        self._output = folder / f"output-{time.monotonic_ns()}"
        (folder / "swarm.py").write_text(PRELUDE + dedent(locustfile))
        clean = {key: value for key, value in os.environ.items() if not key.startswith("LOCUST_")}
        with self._output.open("w") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "locust", "-f", "swarm.py", *options],
                cwd=folder,
                env=clean | {"NOTES": str(self._notes)} | variables,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # its workers are of its process group
            )

    @property
    def output(self) -> str:
        """What it and its workers printed so far."""
        return self._output.read_text()

    @property
    def notes(self) -> list[str]:
        """The lines its users wrote so far."""
        return self._notes.read_text().splitlines()

    def forget(self) -> None:
        """Start a new list of notes."""
        self._notes.write_text("")

    def count(self, note: str) -> int:
        """How often its users wrote this line."""
        return Counter(self.notes)[note]

    def until(self, condition: Callable[[], object], what: str) -> None:
        """Wait for a condition; fails with the process's output when it never holds."""
        deadline = time.monotonic() + DEADLINE_S
        while not condition():
            if time.monotonic() > deadline:
                with contextlib.suppress(ProcessLookupError):
                    self.process.send_signal(signal.SIGUSR2)  # it prints what its greenlets do
                time.sleep(1)
                raise AssertionError(f"{what} did not happen\n{self.notes}\n{self.output}")
            time.sleep(0.05)

    def until_noted(self, note: str, times: int = 1) -> None:
        """Wait until its users wrote this line so often."""
        self.until(lambda: self.count(note) >= times, f"{times} times {note!r}")

    def wait(self) -> int:
        """Its exit code, once it has ended."""
        self.until(lambda: self.process.poll() is not None, "the end of Locust")
        return int(self.process.returncode)

    def kill_group(self) -> None:
        """Leave nothing of it running; it is the leader of an own process group."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(DEADLINE_S)

    def group(self) -> list[int]:
        """The living processes of its group, itself among them."""
        return [
            process.pid
            for process in psutil.process_iter(["status"])
            if process.info["status"] != psutil.STATUS_ZOMBIE and self._owns(process.pid)
        ]

    def _owns(self, pid: int) -> bool:
        try:
            return os.getpgid(pid) == self.process.pid
        except ProcessLookupError:
            return False


class LocustWeb(LocustProcess):
    """A Locust with its web UI, driven over its HTTP API as the browser does."""

    def __init__(self, folder: Path, locustfile: str, *options: str) -> None:
        (port,) = free_ports(1)
        web = ("--web-host", "127.0.0.1", "--web-port", str(port))
        super().__init__(folder, locustfile, *web, *options)
        self._url = f"http://127.0.0.1:{port}"

    def get(self, path: str) -> Any:
        """What a GET answers, decoded from JSON."""
        return self._ask(path, None)

    def post(self, path: str, **form: Any) -> Any:
        """What a POST of a form answers, decoded from JSON."""
        return self._ask(path, urllib.parse.urlencode(form, doseq=True).encode())

    def swarm(self, users: int, spawn_rate: float = 100, **form: Any) -> None:
        """Start a swarm, or edit the running one."""
        answer = self.post("/swarm", user_count=users, spawn_rate=spawn_rate, **form)
        assert answer["success"], answer

    def statistics(self) -> Any:
        """Locust's statistics; they may be two seconds old."""
        return self.get("/stats/requests")

    def serves(self) -> bool:
        """Whether the web UI answers."""
        with contextlib.suppress(OSError):
            return bool(self.statistics())
        return False

    def _ask(self, path: str, body: bytes | None) -> Any:
        with urllib.request.urlopen(self._url + path, body, timeout=DEADLINE_S) as answer:
            return json.load(answer)


@contextlib.contextmanager
def running_locust(
    folder: Path, locustfile: str, *options: str, **variables: str
) -> Iterator[LocustProcess]:
    """A headless Locust for the length of the block."""
    locust = LocustProcess(folder, locustfile, "--headless", *options, **variables)
    try:
        yield locust
    finally:
        locust.kill_group()


@contextlib.contextmanager
def running_web(folder: Path, locustfile: str, *options: str) -> Iterator[LocustWeb]:
    """A Locust whose web UI answers, for the length of the block."""
    locust = LocustWeb(folder, locustfile, *options)
    try:
        locust.until(locust.serves, "an answer of the web UI")
        yield locust
    finally:
        locust.kill_group()
