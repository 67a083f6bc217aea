"""What `import kvswarm` promises: its names, their types, what it does not load, the command."""

import subprocess
import sys
from pathlib import Path

import pytest

import kvswarm

ROOT = Path(__file__).parents[2]
NAMES = [
    "AsyncUser",
    "Batch",
    "BatchOutcome",
    "BatchRecord",
    "BatchTurn",
    "ContextUser",
    "Exchange",
    "KvswarmError",
    "Outcome",
    "Request",
    "RequestRecord",
    "Turn",
    "UsageError",
    "__version__",
    "set_defaults",
]
OLD_IMPORTS = """
import kvswarm
from loadgen.swarm.context_user import ContextUser
from loadgen.swarm.plugin import set_defaults
from loadgen.swarm.user import AsyncUser
assert AsyncUser is kvswarm.AsyncUser
assert ContextUser is kvswarm.ContextUser
assert set_defaults is kvswarm.set_defaults
assert all(getattr(kvswarm, name) is not None for name in kvswarm.__all__)
"""
LOCUSTFILE = '''\
# mypy: disable-error-code="type-var"
"""Locust's @task is typed for plain functions, hence the line above."""

from typing import assert_type

from locust import constant, task

import kvswarm
from kvswarm import (
    AsyncUser, Batch, BatchOutcome, BatchRecord, BatchTurn, ContextUser, Exchange, KvswarmError,
    Outcome, Request, RequestRecord, Turn, UsageError, set_defaults,
)

set_defaults(contexts=4, output_tokens="8")
assert_type(kvswarm.__version__, str)


class Reader(ContextUser):
    wait_time = constant(1)

    @task
    async def ask(self) -> None:
        turn = await self.next_turn()
        assert_type(turn, Turn)
        assert_type(turn.request, Request)
        assert_type(turn.request.prompt, str)
        exchange = await self.send(turn, body_extra={"top_k": 1})
        assert_type(exchange, Exchange)
        assert_type(exchange.outcome, Outcome)
        assert_type(exchange.cached_tokens, int | None)


class Clerk(ContextUser):
    sends_batches = True

    @task
    async def ask(self) -> None:
        turn = await self.next_batch()
        assert_type(turn, BatchTurn)
        assert_type(turn.batch, Batch)
        record = await self.send_batch(turn)
        assert_type(record, BatchRecord)
        assert_type(record.outcome, BatchOutcome)


class Other(AsyncUser):
    @task
    async def ask(self) -> None:
        self.fire_request(request_type="GET", name="x", response_time=1.0, response_length=0)


def slow(record: RequestRecord) -> bool:
    error: KvswarmError = UsageError("one line")
    return record.ttft_ms is not None and record.ttft_ms > 500 and not str(error)
'''


def python(*arguments: str, cwd: Path = ROOT) -> str:
    """What a Python of its own prints: importing Locust patches the process."""
    command = [sys.executable, *arguments]
    done = subprocess.run(
        command, cwd=cwd, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_exported_names() -> None:
    assert kvswarm.__all__ == NAMES
    assert dir(kvswarm) == NAMES


def test_another_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="'kvswarm' has no attribute 'Leader'"):
        _ = kvswarm.Leader


def test_every_name_loads_and_the_old_imports_give_the_same() -> None:
    python("-c", OLD_IMPORTS)


def test_the_version_and_the_errors_load_neither_locust_nor_gevent() -> None:
    script = "import kvswarm, sys; kvswarm.__version__, kvswarm.KvswarmError, kvswarm.Exchange"
    loaded = python("-c", f"{script}; print({{'gevent', 'locust'}} & sys.modules.keys())")
    assert loaded == "set()\n"


def test_a_locustfile_is_type_checked_against_them(tmp_path: Path) -> None:
    file = tmp_path / "reader.py"
    file.write_text(LOCUSTFILE)
    assert "no issues found" in python("-m", "mypy", "--strict", str(file))


def test_the_command_runs_as_a_module_beside_a_folder_of_its_name(tmp_path: Path) -> None:
    (tmp_path / "kvswarm").mkdir()
    said = f"kvswarm {kvswarm.__version__}\n"
    assert python("-m", "kvswarm", "--version", cwd=tmp_path) == said
    assert python("-m", "loadgen.cli.main", "--version", cwd=tmp_path) == said
