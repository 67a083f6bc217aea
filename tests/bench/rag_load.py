"""A real vLLM that serves a swarm, as load beside what is measured."""

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from rag_rows import SwarmRow

USERS = 8
COMMAND = (
    *("-m", "loadgen.cli.main", "run", "unordered", "--target", "vllm", "--kv-tokens", "5120"),
    *("--context-tokens", "1500", "-u", str(USERS), "-r", str(USERS), "-t", "15m"),
)
START_S, STOP_S = 240.0, 90.0
SERVED_FIRST = 2 * USERS


@asynccontextmanager
async def swarm(folder: Path) -> AsyncIterator[None]:
    """Inside, `kvswarm run` into `folder` has served some requests and goes on.

    Raises RuntimeError where it does not get there or ends early; it is stopped whatever happens.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    log = folder.with_suffix(".log")
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            sys.executable, *COMMAND, "--out", str(folder), stdout=output, stderr=output
        )
    try:
        await asyncio.wait_for(_under_way(process, folder), START_S)
        yield
        if process.returncode is not None:
            raise RuntimeError(f"the swarm ended early with {process.returncode}, see {log}")
    finally:
        await _stop(process)


async def _under_way(process: asyncio.subprocess.Process, folder: Path) -> None:
    table = folder / "requests.csv"
    while not table.is_file() or table.read_bytes().count(b"\n") <= SERVED_FIRST:
        if process.returncode is not None:
            raise RuntimeError(f"kvswarm run ended with {process.returncode}, see beside {folder}")
        await asyncio.sleep(0.5)


async def _stop(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.send_signal(signal.SIGINT)
    try:
        await asyncio.wait_for(process.wait(), STOP_S)
    except TimeoutError:
        # Its guard stops the engine.
        process.kill()
        await process.wait()


def swarm_row(folder: Path) -> SwarmRow:
    """The run's own summary."""
    summary: dict[str, Any] = json.loads((folder / "summary.json").read_bytes())
    ttft = summary["metrics"]["ttft_ms"]
    return SwarmRow(summary["requests"], summary["failed"], ttft["p50"], ttft["p95"], ttft["p99"])
