"""One running service, under its guard, and the lines of its log that say why it failed."""

import asyncio
import contextlib
import os
import re
import shutil
import signal
import sys
import time
from asyncio.subprocess import Process
from pathlib import Path
from typing import BinaryIO, Self

import psutil

from loadgen.errors import TargetError
from loadgen.targets.hardware import detect_platform
from loadgen.targets.plan import ServicePlan

TAIL_BYTES = 256 * 1024
MAX_LINES = 3
MAX_CHARACTERS = 300

ANSI = re.compile(r"\x1b\[[0-9;]*m")
# What log formats put before the message: "(EngineCore pid=1) ERROR 11-21 03:04:23 [core.py:9] ".
PREFIX = re.compile(r"^(?:\([^)]*pid=\d+\)\s*)?(?:\[?(?:ERROR|CRITICAL)\b[^\]]*\]\s*)?")
EXCEPTION = re.compile(r"^(?:[a-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Exit|Failure)(?::\s.*)?$")
USAGE = re.compile(r"^(?:\S+: error: |Value error, ).+$")  # argparse's and pydantic's
# What vLLM raises once one of its processes has failed, never the reason itself.
CONSEQUENCE = re.compile(
    r"Engine core initialization failed|EngineDeadError|Worker failed with error|ValidationError: "
)
NOISE = re.compile(
    r"\b(INFO|DEBUG)\b|warn|leaked|nanobind|^Traceback|until Ctrl-C$|\d%.*\[\d\d:\d\d<",
    re.IGNORECASE,
)
GUARD_MARGIN_S = 15.0
SIGNAL_BASE = 128


def telling_lines(log: Path, start: int = 0) -> list[str]:
    """The last distinct exceptions and usage errors written after byte `start`, oldest first.

    Where there are none, the last line that is neither routine output nor a warning.
    """
    lines = [PREFIX.sub("", line).strip() for line in _tail(log, start)]
    errors = [line for line in lines if EXCEPTION.match(line) or USAGE.match(line)]
    reasons = [line for line in errors if not CONSEQUENCE.search(line)] or errors
    if not reasons:
        reasons = [line for line in lines if line and not NOISE.search(line)][-1:]
    return [_cut(line) for line in dict.fromkeys(reasons)][-MAX_LINES:]


def _cut(line: str) -> str:
    return line if len(line) <= MAX_CHARACTERS else f"{line[: MAX_CHARACTERS - 1]}…"


def _tail(log: Path, start: int) -> list[str]:
    try:
        with log.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(start, size - TAIL_BYTES))
            text = file.read().decode("utf-8", errors="replace")
    except OSError:
        return []
    return ANSI.sub("", text).splitlines()


class ServiceProcess:
    """A service between `start` and `stop`; its output goes to `<log_dir>/<service>.log`."""

    def __init__(
        self, plan: ServicePlan, guard: Process, log: Path, log_start: int, grace_s: float
    ) -> None:
        self.plan = plan
        self.log = log
        self.stopping = False
        self.ended_perf_s: float | None = None
        """The `perf_counter()` when its own process had exited, of one that is waited for."""
        self._guard = guard
        self._log_start = log_start
        self._grace_s = grace_s

    @classmethod
    async def start(cls, plan: ServicePlan, log_dir: Path, grace_s: float) -> Self:
        """Start the guard and through it the service, which `stop` will give `grace_s` to leave."""
        log = log_dir / f"{plan.name}.log"
        try:
            with _open(log) as output:
                log_start = output.tell()
                guard = await _start_guard(plan, output, grace_s)
        except OSError as error:
            raise TargetError(f"cannot start {plan.name} with log {log}: {error}") from error
        return cls(plan, guard, log, log_start, grace_s)

    @property
    def pids(self) -> list[int]:
        """The service's own processes; none when it has ended."""
        try:
            children = psutil.Process(self._guard.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []
        return [child.pid for child in children]

    async def wait(self) -> None:
        """Return when it has exited, and what it left was ended too."""
        assert self._guard.stdout is not None
        await self._guard.stdout.read()
        self.ended_perf_s = time.perf_counter()
        await self._guard.wait()

    def error(self, happening: str) -> TargetError:
        """What happened to the service, why, by its log, and where the log is."""
        lines = telling_lines(self.log, self._log_start)
        reason = f": {' | '.join(lines)}" if lines else ""
        return TargetError(f"{self.plan.name} {happening}{reason} (log: {self.log})")

    @property
    def exit_words(self) -> str:
        """How it ended: `was ended by SIGKILL`."""
        return _exit_words(self._guard.returncode)

    def exit_error(self) -> TargetError:
        """The error for a service that has exited unasked."""
        return self.error(self.exit_words)

    async def stop(self) -> None:
        """End the service and wait until nothing is left of it."""
        self.stopping = True
        if self._guard.stdin is not None:
            self._guard.stdin.close()
        # A process forked from ours may still hold the pipe open, and the guard may be stopped.
        with contextlib.suppress(ProcessLookupError):
            self._guard.terminate()
            self._guard.send_signal(signal.SIGCONT)
        try:
            await asyncio.wait_for(self._guard.wait(), self._grace_s + GUARD_MARGIN_S)
        except TimeoutError:
            for pid in (self._guard.pid, *self.pids):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            await self._guard.wait()
            for folder in self.plan.folders:
                shutil.rmtree(folder, ignore_errors=True)


def _open(log: Path) -> BinaryIO:
    log.parent.mkdir(parents=True, exist_ok=True)
    return log.open("ab")


async def _start_guard(plan: ServicePlan, output: BinaryIO, grace_s: float) -> Process:
    """An own session keeps a terminal's Ctrl-C away; stdin is the guard's tie to us, and the end
    of its stdout the moment at which the service has exited. An engine that computes on the cores
    of its client leaves them to it."""
    yields = ("--yield",) if detect_platform() == "cpu" else ()
    scratch = [word for path in plan.folders for word in ("--scratch-dir", str(path))]
    return await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "loadgen.targets.guard"),
        *(
            "--parent",
            str(os.getpid()),
            "--grace-s",
            str(grace_s),
            *yields,
            *scratch,
            "--",
            *plan.argv,
        ),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=output,
        env={**_inherited(), **plan.env},
        start_new_session=True,
    )


def _inherited() -> dict[str, str]:
    """Our environment without the scheduler plugin's settings.

    What a shell holds for another server must not change a run without standing in its `run.json`.
    """
    return {k: v for k, v in os.environ.items() if not k.startswith("CONTEXT_SCHEDULER")}


def _exit_words(code: int | None) -> str:
    if code is None:
        return "has exited"
    if code > SIGNAL_BASE:
        with contextlib.suppress(ValueError):
            return f"was ended by {signal.Signals(code - SIGNAL_BASE).name}"
    return f"exited with code {code}"
