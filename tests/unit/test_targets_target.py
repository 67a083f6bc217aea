import asyncio
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from loadgen.errors import TargetError, UsageError
from loadgen.targets import engine_api
from loadgen.targets.catalog import TargetSpec, load_catalog
from loadgen.targets.engine_api import complete, fixed_prompt
from loadgen.targets.plan import ServicePlan
from loadgen.targets.service_group import ServiceGroup
from loadgen.targets.target import RunningTarget, TargetSettings, start_target
from rag_store.extras import install_command

ENGINE = Path(__file__).with_name("fake_engine.py")
CATALOG = """
[services.cache]
argv = ["{python}", "ENGINE", "--port", "{port}"]
ready = "/health"

[services.engine]
argv = ["{python}", "ENGINE", "--port", "{port}", "--blocks", "11"]
env = { TOLD = "{cache.port}" }
ready = "/health"
metrics = "/metrics"
reset = "/reset"
empty_metric = "kept_bytes"
block_size = { cpu = 16, gpu = 16 }

[services.alone]
argv = ["{python}", "ENGINE", "--port", "{port}"]
ready = "/health"
metrics = "/metrics"
reset = "/reset"
block_size = { cpu = 16, gpu = 16 }

[services.littering]
argv = ["{python}", "ENGINE", "--port", "{port}"]
env = { LITTER = "{scratch_dir}" }
ready = "/health"
reset = "/reset"

[targets.littering]
services = ["littering"]
args = ["--litter", "{scratch_dir}"]

[targets.pair]
services = ["cache", "engine"]

[targets.alone]
services = ["alone"]

[targets.forgetful]
extends = "alone"
args = ["--wants", "generation_config", "--no-reset"]
kv_lives = "request"

[targets.forgetful.body]
generation_config = '{"min_new_tokens": {max_tokens}}'

[targets.stubborn]
extends = "forgetful"
kv_lives = "process"
"""
Start = Callable[..., Any]


@pytest.fixture
def catalog(tmp_path: Path) -> dict[str, TargetSpec]:
    file = tmp_path / "targets.toml"
    file.write_text(CATALOG.replace("ENGINE", str(ENGINE)))
    return load_catalog(file)


@pytest.fixture
def start(catalog: dict[str, TargetSpec], tmp_path: Path) -> Start:
    def start(*args: str, name: str = "alone", **settings: Any) -> Any:
        chosen = {"model": "m", "stop_grace_s": 0.5, "start_timeout_s": 60.0, **settings}
        return start_target(catalog[name], TargetSettings(args=args, **chosen), tmp_path / "log")

    return start


def processes(target: RunningTarget) -> list[psutil.Process]:
    return [psutil.Process(pid) for pids in target.facts()["pids"].values() for pid in pids]


def alive(processes: list[psutil.Process]) -> list[psutil.Process]:
    return psutil.wait_procs(processes, timeout=0)[1]


async def cached_tokens(target: RunningTarget) -> int | None:
    return await complete(target.url, target.model, fixed_prompt(100))


async def test_a_target_answers_and_says_what_it_is(start: Start) -> None:
    async with start(kv_tokens=160) as target:
        facts = target.facts()
        assert facts["name"] == "alone"
        assert facts["url"] == target.url
        assert (facts["block_size"], facts["usable_blocks"], facts["usable_tokens"]) == (
            16,
            10,
            160,
        )
        assert facts["max_model_len"] == target.max_model_len == 160
        assert facts["metrics_urls"] == {"alone": f"{target.url}/metrics"}
        running = processes(target)
        assert len(running) == 1
    assert not alive(running)


async def test_services_start_in_order_and_all_of_them_stop(start: Start, tmp_path: Path) -> None:
    async with start(name="pair") as target:
        facts = target.facts()
        running = processes(target)
        first, second = (psutil.Process(facts["pids"][name][0]) for name in ("cache", "engine"))
        assert first.create_time() < second.create_time()
        assert target.longest_start_s == 120.0
        assert facts["env"]["engine"]["TOLD"] in facts["argv"]["cache"]
        assert second.environ()["TOLD"] == facts["env"]["engine"]["TOLD"]
        assert {file.name for file in (tmp_path / "log").iterdir()} == {"cache.log", "engine.log"}
    assert not alive(running)


async def test_settings_of_the_plugin_come_from_options_alone(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CONTEXT_SCHEDULER", "on")
    monkeypatch.setenv("CONTEXT_SCHEDULER_QUANTUM", "5")
    async with start() as target:
        environments = [process.environ() for process in processes(target)]
    assert environments
    assert not any("CONTEXT_SCHEDULER" in each for each in environments)


async def test_a_port_can_be_chosen(start: Start) -> None:
    async with start() as target:
        port = int(target.url.rpartition(":")[2])
        with pytest.raises(UsageError, match=f"cannot listen on 127.0.0.1:{port}"):
            async with start(port=port):
                pass
    async with start(port=port) as target:
        assert target.url == f"http://127.0.0.1:{port}"


async def test_the_log_tells_why_a_service_did_not_start(start: Start, tmp_path: Path) -> None:
    with pytest.raises(TargetError) as error:
        async with start("--fail", "no room for 8000 tokens", name="pair"):
            pass
    log = tmp_path / "log" / "engine.log"
    reason = "engine exited with code 1: ValueError: no room for 8000 tokens"
    assert str(error.value) == f"{reason} (log: {log})"


async def test_a_second_start_does_not_tell_the_first_ones_failure(start: Start) -> None:
    for reason in ("first", "second"):
        with pytest.raises(TargetError) as error:
            async with start("--fail", reason):
                pass
    assert "second" in str(error.value)
    assert "first" not in str(error.value)


async def test_a_service_that_does_not_get_ready_is_given_up_and_stopped(start: Start) -> None:
    with pytest.raises(TargetError, match=r"alone was not ready within 1 s"):
        async with start("--never-ready", start_timeout_s=1.0):
            pass
    assert not [c for c in psutil.Process().children() if "guard" in " ".join(c.cmdline())]


async def test_a_service_that_got_ready_while_this_process_slept_is_ready(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    answers = iter((False, True))

    async def is_ready(url: str) -> bool:
        if not (answer := next(answers)):
            time.sleep(1.0)  # noqa: ASYNC251
        return answer

    monkeypatch.setattr(engine_api, "is_ready", is_ready)
    plan = ServicePlan("sleeper", ("sleep", "60"), {}, "http://h", "http://h/", None)
    async with ServiceGroup([plan], tmp_path, start_timeout_s=0.5, stop_grace_s=0.5) as group:
        await group.start()
        group.check_whole()


async def test_a_command_that_is_not_there_is_named(tmp_path: Path) -> None:
    file = tmp_path / "targets.toml"
    file.write_text(
        '[services.x]\nargv = ["no-such-engine"]\nready = "/"\n[targets.x]\nservices = ["x"]'
    )
    with pytest.raises(
        TargetError, match=r"x exited with code 1: FileNotFoundError.*no-such-engine"
    ):
        async with start_target(load_catalog(file)["x"], TargetSettings("m"), tmp_path):
            pass


@pytest.mark.parametrize("module", ["no_such_module", "no_such_package.module"])
async def test_a_missing_package_is_named_before_anything_starts(
    tmp_path: Path, module: str
) -> None:
    file = tmp_path / "targets.toml"
    service = f'[services.x]\nrequires = ["{module}"]\nargv = ["x"]\nready = "/"\n'
    file.write_text(service + '[targets.x]\nservices = ["x"]')
    with pytest.raises(UsageError, match=f"target x needs {module}: pip install '") as raised:
        async with start_target(load_catalog(file)["x"], TargetSettings("m"), tmp_path / "log"):
            pass
    assert str(raised.value).split(": ", 1)[1] in map(install_command, ("engine-cpu", "engine-gpu"))
    assert not (tmp_path / "log").exists()


async def test_an_engine_with_another_cache_than_asked_for_is_refused(start: Start) -> None:
    with pytest.raises(TargetError, match="21 KV blocks of 16 tokens but has 11 of 16"):
        async with start(kv_tokens=320):
            pass


@pytest.mark.parametrize("name", ["cache", "engine"])
async def test_the_death_of_any_service_is_noticed(start: Start, name: str) -> None:
    async with start(name="pair") as target:
        target.check()
        running = processes(target)
        os.kill(target.facts()["pids"][name][0], signal.SIGKILL)
        error = await asyncio.wait_for(target.wait_died(), 20)
        assert str(error).startswith(f"{name} was ended by SIGKILL")
        with pytest.raises(TargetError, match=name):
            target.check()
    assert not alive(running)


@pytest.mark.parametrize("how", ["--deaf", "--child"])
async def test_what_does_not_leave_when_asked_is_made_to(start: Start, how: str) -> None:
    async with start(how) as target:
        running = processes(target)
        assert len(running) == (2 if how == "--child" else 1)
    assert not alive(running)


async def test_cancelling_the_user_of_a_target_leaves_nothing_running(start: Start) -> None:
    running: asyncio.Future[list[psutil.Process]] = asyncio.get_running_loop().create_future()

    async def use() -> None:
        async with start() as target:
            running.set_result(processes(target))
            await asyncio.sleep(600)

    task = asyncio.create_task(use())
    await running
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not alive(running.result())


async def test_who_is_cancelled_during_the_stop_goes_on_when_nothing_runs(start: Start) -> None:
    running: asyncio.Future[list[psutil.Process]] = asyncio.get_running_loop().create_future()

    async def use() -> None:
        async with start("--deaf", name="pair") as target:
            running.set_result(processes(target))

    task = asyncio.create_task(use())
    await running
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not alive(running.result())


@pytest.mark.parametrize("args", [(), ("--busy", "2")])
async def test_a_reset_makes_cold_without_a_restart(start: Start, args: tuple[str, ...]) -> None:
    async with start(*args) as target:
        before = target.facts()["pids"]
        assert await cached_tokens(target) == 0
        assert await cached_tokens(target) == 96
        assert await target.make_cold() == "cold"
        assert await cached_tokens(target) == 0
        assert target.facts()["pids"] == before


@pytest.mark.parametrize("args", [("--no-reset",), ("--busy", "999")])
async def test_where_a_reset_fails_a_restart_on_the_same_port_makes_cold(
    start: Start, monkeypatch: pytest.MonkeyPatch, args: tuple[str, ...]
) -> None:
    monkeypatch.setattr("loadgen.targets.engine_api.RESET_TRIES", 2)
    async with start(*args) as target:
        url, before = target.url, processes(target)
        died = asyncio.create_task(target.wait_died())
        await cached_tokens(target)
        assert await target.make_cold() == "cold"
        assert await cached_tokens(target) == 0
        assert target.url == url
        assert not alive(before)
        target.check()
        assert not died.done()
        died.cancel()


async def test_a_cache_that_survives_everything_is_never_called_cold(
    start: Start, tmp_path: Path
) -> None:
    async with start("--disk", str(tmp_path / "disk")) as target:
        with pytest.raises(TargetError, match="alone is not cold after a restart"):
            await target.make_cold()


async def test_a_dead_target_cannot_be_made_cold(start: Start) -> None:
    async with start() as target:
        os.kill(processes(target)[0].pid, signal.SIGKILL)
        await target.wait_died()
        with pytest.raises(TargetError, match="SIGKILL"):
            await target.make_cold()


async def test_an_engine_that_keeps_no_kv_is_always_cold(start: Start) -> None:
    """It would refuse the ids that prove it, and a request without what its target adds."""
    async with start(name="forgetful") as target:
        before = target.facts()["pids"]
        assert target.facts()["body"] == {"generation_config": '{"min_new_tokens": {max_tokens}}'}
        assert await target.make_cold() == "cold"
        assert target.facts()["pids"] == before


async def test_an_engine_that_cannot_prove_it_is_cold_after_a_restart(start: Start) -> None:
    async with start(name="stubborn") as target:
        before = target.facts()["pids"]
        assert await target.make_cold(touched=False) == "cold"
        assert target.facts()["pids"] == before
        assert await target.make_cold() == "cold"
        assert target.facts()["pids"] != before


async def test_a_target_without_what_its_engine_asks_for_does_not_start(start: Start) -> None:
    with pytest.raises(TargetError, match="answered 422: no temper"):
        async with start("--wants", "temper"):
            pass


def scratch_dir(target: RunningTarget) -> Path:
    """The directory it was given, in its arguments and in its environment alike."""
    facts = target.facts()
    argv, env = facts["argv"]["littering"], facts["env"]["littering"]
    assert argv[argv.index("--litter") + 1] == env["LITTER"]
    return Path(env["LITTER"])


async def test_a_scratch_directory_lives_as_long_as_its_service(start: Start) -> None:
    async with start(name="littering") as first, start(name="littering") as second:
        mine, other = scratch_dir(first), scratch_dir(second)
        assert mine != other
        assert [path.name for path in mine.iterdir()] == ["litter"]
        assert mine.stat().st_mode & 0o77 == 0, "nobody else may look"
    assert not mine.exists()
    assert not other.exists()


async def test_a_scratch_directory_is_empty_again_after_a_restart(start: Start) -> None:
    async with start("--no-reset", name="littering") as target:
        before = target.facts()["pids"]
        # The fake engine does not start in a directory with something in it.
        assert await target.make_cold() == "cold"
        assert target.facts()["pids"] != before
        assert [path.name for path in scratch_dir(target).iterdir()] == ["litter"]
    assert not scratch_dir(target).exists()


async def test_a_scratch_directory_goes_with_a_service_that_dies(start: Start) -> None:
    async with start(name="littering") as target:
        path = scratch_dir(target)
        os.kill(target.facts()["pids"]["littering"][0], signal.SIGKILL)
        await asyncio.wait_for(target.wait_died(), 20)
        assert not path.exists()


async def test_a_scratch_directory_goes_with_a_service_that_does_not_start(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    monkeypatch.setenv("TMPDIR", str(temporary))
    with pytest.raises(TargetError, match="exited with code 1"):
        async with start("--fail", "no room", name="littering"):
            pass
    assert not any(temporary.iterdir())
