"""One running service, under its guard."""

import asyncio
import contextlib
import os
import shutil
import signal
import sys
from asyncio.subprocess import Process
from pathlib import Path
from typing import BinaryIO, Self

import psutil

from loadgen.errors import TargetError
from loadgen.targets.log import telling_lines
from loadgen.targets.plan import ServicePlan

GUARD_MARGIN_S = 15.0
SIGNAL_BASE = 128


class ServiceProcess:
    """A service between `start` and `stop`; its output goes to `<log_dir>/<service>.log`."""

    def __init__(
        self, plan: ServicePlan, guard: Process, log: Path, log_start: int, grace_s: float
    ) -> None:
        self.plan = plan
        self.log = log
        self.stopping = False
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
        """Return when it has exited."""
        await self._guard.wait()

    def error(self, happening: str) -> TargetError:
        """What happened to the service, why, by its log, and where the log is."""
        lines = telling_lines(self.log, self._log_start)
        reason = f": {' | '.join(lines)}" if lines else ""
        return TargetError(f"{self.plan.name} {happening}{reason} (log: {self.log})")

    def exit_error(self) -> TargetError:
        """The error for a service that has exited unasked."""
        return self.error(_exit_words(self._guard.returncode))

    async def stop(self) -> None:
        """End the service and wait until nothing is left of it."""
        self.stopping = True
        if self._guard.stdin is not None:
            self._guard.stdin.close()
        # A process forked from ours may still hold the pipe open.
        with contextlib.suppress(ProcessLookupError):
            self._guard.terminate()
        try:
            await asyncio.wait_for(self._guard.wait(), self._grace_s + GUARD_MARGIN_S)
        except TimeoutError:
            for pid in (self._guard.pid, *self.pids):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            await self._guard.wait()
            if self.plan.scratch_dir is not None:
                shutil.rmtree(self.plan.scratch_dir, ignore_errors=True)


def _open(log: Path) -> BinaryIO:
    log.parent.mkdir(parents=True, exist_ok=True)
    return log.open("ab")


async def _start_guard(plan: ServicePlan, output: BinaryIO, grace_s: float) -> Process:
    """An own session keeps a terminal's Ctrl-C away; stdin is the guard's tie to us."""
    scratch = () if plan.scratch_dir is None else ("--scratch-dir", str(plan.scratch_dir))
    return await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "loadgen.targets.guard"),
        *("--parent", str(os.getpid()), "--grace-s", str(grace_s), *scratch, "--", *plan.argv),
        stdin=asyncio.subprocess.PIPE,
        stdout=output,
        stderr=output,
        env={**_inherited(), **plan.env},
        start_new_session=True,
    )


def _inherited() -> dict[str, str]:
    """Our environment without the scheduler plugin's settings.

    What a shell holds for another server must not change a run without standing in its `run.json`.
    """
    return {k: v for k, v in os.environ.items() if not k.startswith("CONTEXT_SCHEDULER_")}


def _exit_words(code: int | None) -> str:
    if code is not None and code > SIGNAL_BASE:
        with contextlib.suppress(ValueError):
            return f"was ended by {signal.Signals(code - SIGNAL_BASE).name}"
    return f"exited with code {code}"
