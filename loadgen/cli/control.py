"""The line on which a swarm's process asks for cold caches: a Unix socket, JSON a line."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from loadgen.errors import TargetError
from loadgen.targets.target import RunningTarget


class CacheKeeper:
    """Knows whether the target has served a swarm since its caches were last empty."""

    def __init__(self, target: RunningTarget) -> None:
        self._target = target
        self._touched = False

    async def answer(self, question: dict[str, Any]) -> dict[str, Any]:
        """`{"op": "cold"}` empties the caches, `{"op": "warm"}` keeps them."""
        try:
            if question.get("op") == "cold":
                state = await self._target.make_cold()
            else:
                state = "warm" if self._touched else "cold"
            self._touched = True
        except TargetError as error:
            return {"error": str(error)}
        return {"cache_state": state}


@asynccontextmanager
async def control_line(target: RunningTarget, path: Path) -> AsyncIterator[Path]:
    """Answer on a Unix socket at `path` until the exit."""
    keeper = CacheKeeper(target)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answer = await keeper.answer(json.loads(await reader.readline() or b"{}"))
        writer.write(json.dumps(answer).encode() + b"\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_unix_server(serve, str(path))
    try:
        yield path
    finally:
        server.close()
