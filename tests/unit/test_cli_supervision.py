"""Between the process that runs the engine and the one that runs the swarm."""

import asyncio
import json
import os
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import psutil
import pytest

from loadgen.errors import TargetError, UsageError
from loadgen.launch import supervised, sweep_run
from loadgen.launch.arguments import parse_run
from loadgen.launch.locust_command import locust_argv
from loadgen.launch.swarm_process import _environment, _send, _without_processes, control_line
from loadgen.swarm.leading.supervisor import ENVIRONMENT_VARIABLE, Supervisor
from loadgen.targets.fleet import EngineDeath
from loadgen.targets.hardware import never_given


class Target:
    """Counts how often its caches were emptied; `broken` cannot be."""

    def __init__(self, broken: bool = False) -> None:
        self.emptied = 0
        self.deaths: list[EngineDeath] = []
        self._broken = broken

    async def make_cold(self, touched: bool) -> str:
        self.touched = touched
        if self._broken:
            raise TargetError("it is not cold")
        self.emptied += 1
        return "cold"

    def check_whole(self) -> None:
        if self.deaths:
            raise TargetError("one has died")

    def check(self) -> None:
        if len(self.deaths) > 1:
            raise TargetError("both have died")

    def facts(self) -> dict[str, Any]:
        return {"engine_pid": 100 + self.emptied}


def ask(target: Target, path: Path, *keeps: bool) -> list[str]:
    """What a swarm's process is told about the caches, swarm after swarm."""

    async def talk() -> list[str]:
        async with control_line(target, path):  # type: ignore[arg-type]
            supervisor = Supervisor({}, str(path), [])
            return [await asyncio.to_thread(supervisor.make_cold, keep) for keep in keeps]

    return asyncio.run(talk())


def test_every_swarm_begins_cold(tmp_path: Path) -> None:
    target = Target()
    assert ask(target, tmp_path / "control", False, False) == ["cold", "cold"]
    assert target.emptied == 2
    assert target.touched


def test_kept_caches_are_warm_once_a_swarm_has_used_them(tmp_path: Path) -> None:
    target = Target()
    assert ask(target, tmp_path / "control", True, True, False, True) == [
        *("cold", "warm", "cold", "warm")
    ]
    assert target.emptied == 1


def test_a_swarm_knows_the_process_that_a_restart_made(tmp_path: Path) -> None:
    async def talk() -> Supervisor:
        async with control_line(Target(), tmp_path / "control"):  # type: ignore[arg-type]
            supervisor = Supervisor({"engine_pid": 100}, str(tmp_path / "control"), [])
            await asyncio.to_thread(supervisor.make_cold, False)
            return supervisor

    assert asyncio.run(talk()).facts == {"engine_pid": 101}


def test_an_engine_is_untouched_until_its_first_swarm(tmp_path: Path) -> None:
    target = Target()
    ask(target, tmp_path / "control", False)
    assert not target.touched


def test_an_engine_that_cannot_be_cold_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match="it is not cold"):
        ask(Target(broken=True), tmp_path / "control", False)


def test_an_engine_that_is_not_cold_in_time_is_an_error(tmp_path: Path) -> None:
    path = str(tmp_path / "control")
    supervisor = Supervisor({}, path, [], cold_timeout_s=0.05)
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(path)
        silent.listen()
        with pytest.raises(TargetError, match=r"not cold again within 0\.05 s"):
            supervisor.make_cold(keep=False)
    with pytest.raises(TargetError, match=r"does not answer: .*refused"):
        supervisor.make_cold(keep=False)


@pytest.mark.parametrize("start_s", [3600.0, 1e300])
def test_a_swarm_waits_as_long_as_its_target_may_take_to_start(
    start_s: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = _environment(tmp_path, {}, tmp_path / "control", start_s=start_s)
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, environment[ENVIRONMENT_VARIABLE])
    timeout_s = Supervisor.of_process()._cold_timeout_s
    assert timeout_s > 3600
    with socket.socket() as line:
        line.settimeout(timeout_s)


class Restarting(Target):
    """Takes for ever to be made cold."""

    def __init__(self) -> None:
        super().__init__()
        self.begun = asyncio.Event()

    async def make_cold(self, touched: bool) -> str:
        self.begun.set()
        try:
            await asyncio.sleep(600)
        finally:
            self.deaths.append(EngineDeath("e", 0.0, "was cancelled"))
        return "cold"


async def test_no_restart_outlives_the_line_to_the_swarm(tmp_path: Path) -> None:
    """It would start an engine behind the stop."""
    target = Restarting()
    async with control_line(target, tmp_path / "control") as path:  # type: ignore[arg-type]
        _, writer = await asyncio.open_unix_connection(path)
        writer.write(b'{"op": "cold"}\n')
        await target.begun.wait()
    assert target.deaths
    writer.close()


def test_a_swarm_is_told_which_engines_have_died(tmp_path: Path) -> None:
    target, path = Target(), tmp_path / "control"
    one, other = (EngineDeath(f"e-{number}", 5.0 * number, "has exited") for number in (1, 2))

    async def talk() -> None:
        async with control_line(target, path):  # type: ignore[arg-type]
            swarm = Supervisor({"router": "random"}, str(path), [])
            assert swarm.has_fleet
            assert await asyncio.to_thread(swarm.deaths) == ([], None)
            target.deaths = [one]
            assert await asyncio.to_thread(swarm.deaths) == ([one], None)
            with pytest.raises(TargetError, match="one has died"):
                await asyncio.to_thread(swarm.make_cold, keep=True)
            target.deaths = [one, other]
            assert await asyncio.to_thread(swarm.deaths) == ([one, other], "both have died")

    asyncio.run(talk())


def test_without_a_supervisor_nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ENVIRONMENT_VARIABLE, raising=False)
    supervisor = Supervisor.of_process()
    assert supervisor.make_cold(keep=False) == "unknown"
    assert (supervisor.tokenizer, supervisor.max_model_len, supervisor.cache_tokens) == (None,) * 3
    supervisor.check_host("http://anywhere:8000")


def test_a_swarm_on_a_target_loads_no_other_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts: dict[str, Any] = {"url": "http://127.0.0.1:8000", "usable_tokens": 2560}
    wire = {"facts": facts, "control": None, "command_line": ["kvswarm", "run"]}
    (tmp_path / "target.json").write_text(json.dumps(wire))
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, str(tmp_path / "target.json"))
    supervisor = Supervisor.of_process()
    assert supervisor.cache_tokens == 2560
    assert supervisor.command_line == ["kvswarm", "run"]
    supervisor.check_host("http://127.0.0.1:8000/")
    with pytest.raises(UsageError, match="http://elsewhere"):
        supervisor.check_host("http://elsewhere")


def test_the_check_before_the_engine_starts_no_workers() -> None:
    assert _without_processes(("-u", "4", "--processes", "2", "-t", "3s")) == (
        *("-u", "4", "-t", "3s"),
    )
    assert _without_processes(("--processes=2", "-u", "4")) == ("-u", "4")


def test_workers_of_one_run_meet_on_a_port_of_their_own() -> None:
    def port(*more: str) -> str | None:
        argv = locust_argv("run", parse_run("run", ["unordered", "--host", "http://h", *more]))
        flag = "--master-bind-port"
        return argv[argv.index(flag) + 1] if flag in argv else None

    assert port("-u", "2") is None
    first, second = port("--processes", "2"), port("--processes=2")
    assert first is not None
    assert second is not None
    assert {int(first), int(second)} <= {*never_given()}, "the system may give others away"
    assert port("--processes", "2", "--master-bind-port", "7000") == "7000"


def test_a_late_locustfile_is_refused() -> None:
    with pytest.raises(UsageError, match="first argument"):
        parse_run("run", ["-u", "2", "mine.py", "--host", "http://h"])


class Swarm:
    """One that has ended by itself, with this exit code."""

    async def run(self, *_: object) -> int:
        return 3


@asynccontextmanager
async def interrupted_stop(*_: object) -> AsyncIterator[Swarm]:
    yield Swarm()
    os.kill(os.getpid(), signal.SIGINT)
    await asyncio.sleep(600)


@pytest.mark.parametrize(("targets", "code"), [(1, 3), (2, 130)])
def test_ctrl_c_while_the_engine_stops_leaves_the_code_of_the_swarm(
    monkeypatch: pytest.MonkeyPatch, targets: int, code: int
) -> None:
    async def checked(*_: object) -> int:
        return 0

    for name, stand_in in {
        "check_swarm": checked,
        "was_checked": lambda _: True,
        "checked_labels": lambda _: None,
        "started_target": interrupted_stop,
    }.items():
        monkeypatch.setattr(supervised, name, stand_in)
    target = SimpleNamespace(spec=SimpleNamespace(name="x"), logs=Path(), run=None)
    runs = cast(Any, [target] * targets)
    assert asyncio.run(supervised._supervise("run", cast(Any, None), runs)) == code


@pytest.mark.parametrize(("left", "code"), [([], 0), (["a stretch"], 130)])
def test_ctrl_c_while_the_last_engine_stops_leaves_a_sweep_that_is_made(
    monkeypatch: pytest.MonkeyPatch, left: list[Any], code: int
) -> None:
    async def interrupted(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.sleep(600)

    monkeypatch.setattr(sweep_run, "run_sweep", interrupted)
    monkeypatch.setattr(sweep_run, "left_of", lambda *_: left)
    monkeypatch.setattr(sweep_run.SweepRun, "_plan_line", lambda _: "")
    monkeypatch.setattr(sweep_run.SweepRun, "_durations", lambda _: None)
    definition = cast(Any, SimpleNamespace(command=str))
    sweep = sweep_run.SweepRun(definition, cast(Any, SimpleNamespace(path=Path())), (), {}, ())
    assert asyncio.run(sweep.make()) == code


def has_ended(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


async def test_a_signal_to_a_swarm_that_has_just_ended_leaves_its_exit_code() -> None:
    """To a group the signal comes to both: the swarm is gone when it is handed on."""
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", "raise SystemExit(7)")
    proc = cast(Any, process)._transport._proc
    proc.poll = lambda: pytest.fail("asyncio would not find the exit code")
    deadline = time.monotonic() + 20
    while not has_ended(process.pid):  # and the loop stands
        assert time.monotonic() < deadline
    _send(process, signal.SIGHUP)
    assert await process.wait() == 7
