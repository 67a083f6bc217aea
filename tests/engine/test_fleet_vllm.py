"""The target `vllm-fleet`: two real vLLMs behind vLLM's own router, then behind HAProxy.

In the end one of them is killed in mid-run.
"""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import pytest_asyncio
from engine_runs import read, rows, run_on

from loadgen.client.client import StreamingClient
from loadgen.client.exchange import Exchange
from loadgen.client.settings import ClientSettings
from loadgen.runs.exit_code import TARGET_DIED
from loadgen.targets import engine_api
from loadgen.targets.catalog import load_catalog
from loadgen.targets.demo_model import build_model
from loadgen.targets.fleet import router_program
from loadgen.targets.hardware import free_ports
from loadgen.targets.router import SESSION_HEADER
from loadgen.targets.target import RunningTarget, TargetSettings, start_target

pytestmark = [
    pytest.mark.engine,
    pytest.mark.timeout(1300),
    pytest.mark.asyncio(loop_scope="module"),
]

LONGEST_S = 300.0
"""Until both engines have served, and for a run of seconds, however busy the machine is."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def target(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RunningTarget]:
    directory = tmp_path_factory.mktemp("target")
    model = build_model(directory / "tiny", "tiny", ["A text to learn from. " * 20])
    settings = TargetSettings(str(model), kv_tokens=2560, replicas=2, router="kv_aware")
    async with start_target(load_catalog()["vllm-fleet"], settings, directory / "log") as target:
        yield target


async def served_by(url: str, model: str, sessions: list[str]) -> list[str]:
    """The engine of a request of each session."""
    given = ClientSettings(url=url, model=model, session_header=SESSION_HEADER)
    exchanges = [Exchange() for _ in sessions]
    async with StreamingClient(given) as client:
        for exchange, session in zip(exchanges, sessions, strict=True):
            await client.stream("Where does it say so?", 2, exchange, session=session)
    assert {each.outcome for each in exchanges} == {"ok"}, exchanges
    return [each.served_by for each in exchanges]


async def test_a_session_keeps_its_engine_and_each_engine_has_some(
    target: RunningTarget, tmp_path: Path
) -> None:
    sessions = [f"s-{number}" for number in range(12)]
    async with router_before(target, "consistent_hash", tmp_path) as url:
        first = await served_by(url, target.model, sessions)
        assert await served_by(url, target.model, sessions) == first
    assert set(first) == {"vllm-1", "vllm-2"}


async def test_kv_aware_finds_the_engine_that_has_the_blocks(target: RunningTarget) -> None:
    async def served(url: str, prompt: str) -> str:
        exchange = Exchange()
        async with StreamingClient(ClientSettings(url=url, model=target.model)) as client:
            await client.stream(prompt, 2, exchange)
        return exchange.served_by

    engines = [plan for plan in target._group.plans if plan.role == "engine"]
    for number, plan in enumerate(engines * 3):
        prompt = f"{number} is what this text is about. " + f"{number} of these words. " * 60
        assert await served(plan.url, prompt) == plan.name
        await asyncio.sleep(1.0)  # the router hears of its blocks beside the reply
        assert await served(target.url, prompt) == plan.name


async def test_cold_means_every_engine(target: RunningTarget) -> None:
    engines = [plan.url for plan in target._group.plans if plan.role == "engine"]
    prompt = engine_api.fixed_prompt(600)
    for url in engines:
        await engine_api.complete(url, target.model, prompt)
    assert await target.make_cold() == "cold"
    assert [await engine_api.complete(url, target.model, prompt) for url in engines] == [0, 0]


async def test_its_facts_name_every_engine(target: RunningTarget) -> None:
    facts = target.facts()
    assert (facts["replicas"], facts["router"]) == (2, "kv_aware")
    replicas = facts["sources"]["engine"]["replicas"]
    assert list(replicas) == ["vllm-1", "vllm-2"]
    assert all(psutil.pid_exists(each["pid"]) for each in replicas.values())
    assert target.url not in {each["metrics_url"] for each in replicas.values()}


@asynccontextmanager
async def router_before(target: RunningTarget, policy: str, scratch: Path) -> AsyncIterator[str]:
    """The address of another router of the same engines."""
    assert router_program(policy) is not None
    (port, metrics_port) = free_ports(2)
    urls = ",".join(plan.url for plan in target._group.plans if plan.role == "engine")
    words = ["--policy", policy, "--port", str(port), "--metrics-port", str(metrics_port)]
    router = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "loadgen.targets.router", *words, "--scratch-dir", scratch, urls
    )
    try:
        for _ in range(100):
            if await engine_api.is_ready(f"http://127.0.0.1:{port}/health"):
                break
            await asyncio.sleep(0.1)
        yield f"http://127.0.0.1:{port}"
    finally:
        router.terminate()
        await router.wait()


async def test_cache_aware_keeps_a_context_on_its_engine(
    target: RunningTarget, tmp_path: Path
) -> None:
    contexts = [f"Context {number}. " + f"{number} of these words. " * 12 for number in range(6)]

    async def asked(client: StreamingClient, prompt: str) -> str:
        exchange = Exchange()
        await client.stream(prompt, 16, exchange)
        assert exchange.outcome == "ok", exchange
        return exchange.served_by

    async with (
        router_before(target, "cache_aware", tmp_path) as url,
        StreamingClient(ClientSettings(url=url, model=target.model)) as client,
    ):
        rounds = [
            await asyncio.gather(*(asked(client, each + question) for each in contexts))
            for question in ("What does it say?", "Where?", "And who said so, and when?")
        ]
    assert set(rounds[0]) == {"vllm-1", "vllm-2"}
    assert rounds[1:] == rounds[:1] * 2


@pytest.mark.skipif(router_program("haproxy-hash") is None, reason="HAProxy is not installed")
@pytest.mark.parametrize("policy", ["haproxy-hash", "haproxy-leastconn"])
async def test_haproxy_before_the_same_engines(
    target: RunningTarget, policy: str, tmp_path: Path
) -> None:
    async with router_before(target, policy, tmp_path) as url:
        sessions = [f"s-{number}" for number in range(12)]
        first = await served_by(url, target.model, sessions)
        again = await served_by(url, target.model, sessions)
    assert set(first) == {"vllm-1", "vllm-2"}
    assert (again == first) or policy == "haproxy-leastconn"


async def test_the_other_engine_serves_on_and_the_outage_is_told(
    target: RunningTarget,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """The last here: it leaves one engine."""
    out = tmp_path / "run"
    async with router_before(target, "round_robin", tmp_path) as url, asyncio.timeout(LONGEST_S):
        monkeypatch.setattr(target, "url", url)
        monkeypatch.setattr(target, "_settings", replace(target._settings, router="round_robin"))
        run = asyncio.create_task(run_on(target, out, "-u", 4, "-r", 4, "-t", "20s"))
        while not {"vllm-1", "vllm-2"} <= {row["engine"] for row in rows(out)}:
            assert not run.done(), capfd.readouterr()
            await asyncio.sleep(0.2)
        os.kill(read(out, "run.json")["target"]["pids"]["vllm-2"][0], signal.SIGKILL)
        code = await run
    printed, said = capfd.readouterr()
    assert code == TARGET_DIED, said
    assert "vllm-2 has died: the run goes on with the other engines" in said
    assert "ENGINE DIED: vllm-2 was ended by SIGKILL at " in printed
    summary = read(out, "summary.json")
    (death,) = summary["engine_deaths"]
    every = rows(out)
    failed = [row for row in every if row["outcome"] not in ("ok", "cancelled")]
    assert len(every) == summary["requests"]
    assert death["failed"] == len(failed) > 0
    assert all(row["error"] for row in failed)
    assert death["served_again_s"] > 0
    last_s = max(float(row["end_s"]) for row in failed)
    later = [row for row in every if row["outcome"] == "ok" and float(row["sent_s"]) > last_s]
    assert {row["engine"] for row in later} == {"vllm-1"}
    assert summary["replicas"]["engines"]["vllm-2"]["computed_prompt_tokens"] is not None
    assert summary["server"]["server_cpu_ms_per_token"] > 0
