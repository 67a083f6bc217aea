"""`kvswarm ui` as a process of its own, and the run directories it leaves."""

import asyncio
import contextlib
import csv
import json
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import psutil

from loadgen.targets.hardware import free_ports

STOP_S = 45
FOLLOW_S = 10


@dataclass(frozen=True)
class UiProcess:
    """A running `kvswarm ui`: where its page is, where its swarms write."""

    url: str
    out: Path
    log: Path

    def runs(self) -> list[Path]:
        """The run directories of the swarms so far, in the order of their starts."""
        return sorted(path.parent for path in self.out.glob("*/run.json"))

    async def rows_written(self, number: int, least: int) -> None:
        """Wait until the swarm of that number has recorded so many requests."""
        await until(lambda: len(self.runs()) > number and len(_rows(self.runs()[number])) >= least)

    async def closed_run(self, number: int) -> "ClosedRun":
        """The run directory of the swarm of that number, counted from 0, once it is complete."""
        await until(lambda: len(self.runs()) > number and _is_closed(self.runs()[number]))
        return ClosedRun(self.runs()[number])


@dataclass(frozen=True)
class ClosedRun:
    path: Path

    @property
    def rows(self) -> list[dict[str, str]]:
        return _rows(self.path)

    @property
    def facts(self) -> dict[str, Any]:
        return dict(json.loads((self.path / "run.json").read_text()))

    @property
    def summary(self) -> dict[str, Any]:
        return dict(json.loads((self.path / "summary.json").read_text()))


def _rows(path: Path) -> list[dict[str, str]]:
    with (path / "requests.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def _is_closed(path: Path) -> bool:
    return "exit_code" in json.loads((path / "run.json").read_text())


async def until(condition: Callable[[], bool], timeout_s: float = 30) -> None:
    """Wait for what has to come true in time."""
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110 (files of another process)
            await asyncio.sleep(0.05)


@asynccontextmanager
async def kvswarm_ui(
    out: Path, *options: object, start_timeout_s: float = 30
) -> AsyncIterator[UiProcess]:
    """Run it until the exit, which leaves no process of it behind."""
    (port,) = free_ports(1)
    ui = UiProcess(f"http://127.0.0.1:{port}", out, out.with_suffix(".log"))
    arguments = ["ui", "unordered", *options, "--out", out, "--web-port", port]
    with ui.log.open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "loadgen.cli.main", *map(str, arguments)),
            stdout=log,
            stderr=log,
        )
    try:
        await _answering(ui, process, start_timeout_s)
        yield ui
    finally:
        await _end(process)


async def _answering(ui: UiProcess, process: asyncio.subprocess.Process, timeout_s: float) -> None:
    async with asyncio.timeout(timeout_s), aiohttp.ClientSession() as session:
        while True:
            assert process.returncode is None, ui.log.read_text()
            with contextlib.suppress(aiohttp.ClientError):
                async with session.get(ui.url) as answer:
                    assert answer.status == 200
                    return
            await asyncio.sleep(0.1)


async def _end(process: asyncio.subprocess.Process) -> None:
    family = []
    with contextlib.suppress(psutil.NoSuchProcess):
        family = psutil.Process(process.pid).children(recursive=True)
    if process.returncode is None:
        process.terminate()
    try:
        async with asyncio.timeout(STOP_S):
            await process.wait()
        # A master does not wait for its workers, which follow it.
        _, left = await asyncio.to_thread(psutil.wait_procs, family, FOLLOW_S)
        left = [child for child in left if _lives(child)]
        assert not left, f"left running: {left}"
    finally:
        for child in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
        if process.returncode is None:
            process.kill()
            await process.wait()


def _lives(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.status() != psutil.STATUS_ZOMBIE
    return False
