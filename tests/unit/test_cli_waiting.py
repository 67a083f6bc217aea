"""Whoever waits for an engine is told how long it takes and where its log is."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from loadgen.launch import terminal


@asynccontextmanager
async def slow(logs: Path, fails: bool) -> AsyncIterator[str]:
    (logs / "cache.log").touch()
    await asyncio.sleep(0.12)
    (logs / "engine.log").touch()
    await asyncio.sleep(0.12)
    if fails:
        raise OSError("no room")
    yield "up"


@pytest.mark.parametrize("fails", [False, True])
def test_a_start_that_takes_long_is_told_until_it_is_over(
    tmp_path: Path,
    fails: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(terminal, "TELL_EVERY_S", 0.05)

    async def start() -> None:
        async with terminal.awaited(slow(tmp_path, fails), "vllm", tmp_path) as target:
            assert target == "up"
            capsys.readouterr()
            await asyncio.sleep(0.2)
            assert capsys.readouterr().err == "", "it is there"

    if fails:
        with pytest.raises(OSError, match="no room"):
            asyncio.run(start())
        lines = capsys.readouterr().err.splitlines()
        assert lines[0] == f"kvswarm: vllm is starting for 0 s, log: {tmp_path / 'cache.log'}"
        assert lines[-1].endswith(str(tmp_path / "engine.log"))
    else:
        asyncio.run(start())
