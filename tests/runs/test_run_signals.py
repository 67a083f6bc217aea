"""Ctrl-C and signals that the whole process group gets, as from a terminal."""

import fcntl
import os
import pty
import signal
import subprocess
import termios
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest
from run_process import TIMEOUT_S, HostProcess, Ran, arguments, wait_until, workers_with_rows

WORKERS = ("--processes", 2, "--output-tokens", 4, "-u", 20, "-r", 20)


@dataclass
class Foreground:
    """A run in the foreground of a terminal of its own."""

    process: subprocess.Popen[bytes]
    terminal: int
    out: Path
    said: list[bytes] = field(default_factory=list)

    def press(self, key: bytes) -> None:
        os.write(self.terminal, key)

    def workers(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children()

    def ran(self, timeout_s: float = TIMEOUT_S) -> Ran:
        code = self.process.wait(timeout_s)
        return Ran(code, b"".join(self.said).decode(errors="replace"), self.out)

    def listen(self) -> None:
        try:
            while text := os.read(self.terminal, 4096):
                self.said.append(text)
        except OSError:  # nobody has the other end any more
            return


def _take_terminal() -> None:
    os.setsid()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


@contextmanager
def foreground(host: HostProcess, out: Path, *more: object) -> Iterator[Foreground]:
    ours, its = pty.openpty()
    command = arguments(host.url, out, "--model", "normal", *more)
    process = subprocess.Popen(
        command, stdin=its, stdout=its, stderr=its, preexec_fn=_take_terminal
    )
    os.close(its)
    running = Foreground(process, ours, out)
    listener = threading.Thread(target=running.listen)
    listener.start()
    try:
        yield running
    finally:
        end_group(process)
        listener.join(TIMEOUT_S)
        os.close(ours)


def end_group(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def keeps_everything(ran: Ran, host: HostProcess, code: int = 0) -> None:
    assert ran.code == code, ran.output
    assert len(ran.rows) == len(host.prompts()) == ran.json("summary.json")["requests"]
    assert ran.json("summary.json")["lost_workers"] == 0
    assert "Traceback" not in ran.output
    assert "ERROR" not in ran.output, "of a user that has left"


def ctrl_c(run: Foreground) -> None:
    run.press(b"\x03")


def ctrl_c_twice(run: Foreground) -> None:
    run.press(b"\x03")
    time.sleep(0.3)
    run.press(b"\x03")


def terminated(run: Foreground) -> None:
    os.killpg(run.process.pid, signal.SIGTERM)


def hung_up(run: Foreground) -> None:
    os.killpg(run.process.pid, signal.SIGHUP)


@pytest.mark.parametrize("end", [ctrl_c, ctrl_c_twice, terminated, hung_up])
def test_a_signal_to_all_processes_of_a_run_loses_no_row(
    host: HostProcess, tmp_path: Path, end: Callable[[Foreground], None]
) -> None:
    with foreground(host, tmp_path / "run", *WORKERS) as run:
        wait_until(lambda: workers_with_rows(run.out, 20) == {"0", "1"})
        workers = run.workers()
        end(run)
        keeps_everything(run.ran(), host)
        assert not any(worker.is_running() for worker in workers)


@pytest.mark.parametrize("workers", [("-u", 4, "-r", 4), WORKERS])
def test_under_nohup_a_hangup_to_all_processes_of_a_run_ends_none(
    host: HostProcess, tmp_path: Path, workers: tuple[object, ...]
) -> None:
    out = tmp_path / "run"
    command = ["nohup", *arguments(host.url, out, "--model", "normal", *workers, "-t", "4s")]
    nowhere = subprocess.DEVNULL
    process = subprocess.Popen(
        command, stdin=nowhere, stdout=nowhere, stderr=nowhere, start_new_session=True
    )
    try:
        wait_until(lambda: bool(workers_with_rows(out, 10)))
        os.killpg(process.pid, signal.SIGHUP)
        code = process.wait(TIMEOUT_S)
    finally:
        end_group(process)
    assert (code, Ran(code, "", out).json("run.json")["interrupted"]) == (0, False)


def test_ctrl_c_while_the_replies_of_workers_are_waited_for_loses_no_row(
    host: HostProcess, tmp_path: Path
) -> None:
    drain = ("--model", "endless", "--processes", 2, "-u", 4, "-r", 4, "-t", "1s", "--drain", 999)
    with foreground(host, tmp_path / "run", *drain) as run:
        wait_until(lambda: len(host.prompts()) == 4)
        time.sleep(2)  # the second of load is over
        ctrl_c(run)
        ran = run.ran()
    keeps_everything(ran, host, 1)
    assert [row["outcome"] for row in ran.rows] == ["cancelled"] * 4


def test_a_worker_that_is_stopped_does_not_outlive_the_run(
    host: HostProcess, tmp_path: Path
) -> None:
    with foreground(host, tmp_path / "run", *WORKERS) as run:
        wait_until(lambda: workers_with_rows(run.out, 20) == {"0", "1"})
        stopped, other = run.workers()
        stopped.send_signal(signal.SIGSTOP)
        ctrl_c(run)
        ran = run.ran()
        assert (ran.code, ran.json("summary.json")["lost_workers"]) == (1, 1), ran.output
        wait_until(lambda: not stopped.is_running(), 5)
        assert not other.is_running()


def test_a_worker_that_is_killed_before_the_start_ends_the_run(
    host: HostProcess, tmp_path: Path
) -> None:
    with foreground(host, tmp_path / "run", *WORKERS) as run:
        wait_until(lambda: len(run.workers()) == 2, every_s=0.002)  # a start takes 50 ms
        run.workers()[0].kill()
        ran = run.ran(30)
    assert ran.code == 1
    assert "a worker of --processes 2 is gone before the start" in ran.output
    assert "Traceback" not in ran.output
