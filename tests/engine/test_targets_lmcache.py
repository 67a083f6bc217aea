"""The target `vllm-lmcache-files` with a real vLLM and a real LMCache."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import psutil
import pytest
import pytest_asyncio
from engine_runs import log_probabilities, read, rows, run_on

from loadgen.launch.terminal import Interruption
from loadgen.runs.exit_code import DONE
from loadgen.targets import engine_api
from loadgen.targets.catalog import load_catalog
from loadgen.targets.demo_model import build_model
from loadgen.targets.own_routes import KEY_VARIABLE
from loadgen.targets.plan import ServicePlan
from loadgen.targets.target import RunningTarget, TargetSettings, start_target

pytestmark = [
    pytest.mark.engine,
    pytest.mark.timeout(1300),
    pytest.mark.asyncio(loop_scope="module"),
]

PROMPT_TOKENS, FULL_TOKENS, CHUNK_TOKENS = 1300, 1280, 128
MEMORY_BYTES = "lmcache_mp_l1_memory_usage_bytes"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def target(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RunningTarget]:
    directory = tmp_path_factory.mktemp("target")
    model = build_model(directory / "tiny", "tiny", ["A text to learn from. " * 20])
    settings = TargetSettings(str(model), kv_tokens=2560, l1_gb=0.25, l2_dir=directory)
    spec = load_catalog()["vllm-lmcache-files"]
    async with start_target(spec, settings, directory / "log") as target:
        yield target


async def cached_tokens(target: RunningTarget) -> int | None:
    return await engine_api.complete(
        target.url, target.model, engine_api.fixed_prompt(PROMPT_TOKENS)
    )


async def external_tokens(target: RunningTarget) -> float:
    url = target.facts()["metrics_urls"]["vllm"]
    hits = await engine_api.metric(url, "vllm:external_prefix_cache_hits_total")
    return hits or 0.0


async def test_cold_means_that_lmcache_is_empty_too(target: RunningTarget) -> None:
    await target.make_cold()
    assert await cached_tokens(target) == 0
    # With only the engine's own cache emptied, the prompt comes back from LMCache.
    (engine,) = (plan for plan in target._group.plans if plan.role == "engine")
    assert engine.reset_url is not None
    assert await engine_api.reset(engine.reset_url, engine.env[KEY_VARIABLE])
    before = await external_tokens(target)
    assert await cached_tokens(target) == FULL_TOKENS
    assert await external_tokens(target) - before == FULL_TOKENS

    assert await target.make_cold() == "cold"
    assert await cached_tokens(target) == 0


async def stored_files(target: RunningTarget) -> list[Path]:
    """All of the fixed prompt's, which LMCache writes behind the reply."""
    (folder,) = (plan.l2_dir for plan in target._group.plans if plan.role == "cache")
    assert folder is not None
    for _ in range(100):
        files = sorted(folder.rglob("*.data"))
        if len(files) >= FULL_TOKENS // CHUNK_TOKENS:
            return files
        await asyncio.sleep(0.1)
    raise AssertionError("the files were not written")


def metrics_of(plan: ServicePlan) -> str:
    assert plan.metrics_url is not None
    return plan.metrics_url


async def empty_all_but_files(target: RunningTarget) -> None:
    for plan in target._group.plans:
        assert plan.reset_url is not None
        for _ in range(engine_api.RESET_TRIES):
            done = await engine_api.reset(plan.reset_url, plan.env.get(KEY_VARIABLE))
            used = (
                plan.role == "cache"
                and await engine_api.metric(metrics_of(plan), MEMORY_BYTES) != 0
            )
            if done and not used:
                break
            await asyncio.sleep(engine_api.RESET_PAUSE_S)
        else:
            raise AssertionError(f"the {plan.role} did not reset")


async def test_files_are_read_and_damaged_ones_computed_again(target: RunningTarget) -> None:
    assert await target.make_cold() == "cold"
    computed, cached = [await log_probabilities(target, PROMPT_TOKENS) for _ in range(2)]
    files = await stored_files(target)
    await empty_all_but_files(target)
    before = await external_tokens(target)
    assert await log_probabilities(target, PROMPT_TOKENS) == cached
    assert await external_tokens(target) - before == FULL_TOKENS

    for path in files:
        content = bytearray(path.read_bytes())
        content[len(content) // 3] ^= 1
        path.write_bytes(content)
    await empty_all_but_files(target)
    before = await external_tokens(target)
    assert await log_probabilities(target, PROMPT_TOKENS) == computed
    assert await external_tokens(target) == before


async def test_no_web_page_can_empty_lmcache(target: RunningTarget) -> None:
    """What a page in a browser of this machine could send, without asking first."""
    (lmcache,) = (plan for plan in target._group.plans if plan.role == "cache")
    await cached_tokens(target)
    held = await engine_api.metric(f"{lmcache.url}/metrics", MEMORY_BYTES)
    for path in ("/cache/clear", "/cache/checksums", "/"):
        async with (
            aiohttp.ClientSession() as session,
            session.post(
                lmcache.url + path, data="{}", headers={"Content-Type": "text/plain"}
            ) as response,
        ):
            assert response.status == 403
    now = await engine_api.metric(f"{lmcache.url}/metrics", MEMORY_BYTES)
    assert now == held
    assert held


async def test_both_services_are_told_and_their_metrics_are_there(target: RunningTarget) -> None:
    facts = target.facts()
    assert list(facts["argv"]) == ["lmcache", "vllm"]
    assert facts["l1_gb"] == 0.25
    assert await engine_api.metric(facts["metrics_urls"]["lmcache"], MEMORY_BYTES) is not None


async def test_lmcache_serves_what_the_engine_evicted_until_ctrl_c(
    target: RunningTarget, tmp_path: Path
) -> None:
    out, interruption = tmp_path / "run", Interruption()
    more = ("--contexts", 8, "--context-tokens", 900, "-u", 2, "-r", 2)
    run = asyncio.create_task(run_on(target, out, *more, interruption=interruption))
    async with asyncio.timeout(300):
        while len(rows(out)) < 4 or not lmcache_is_seen(out):
            assert not run.done()
            await asyncio.sleep(0.2)
        assert interruption.handler is not None
        interruption.handler(signal.SIGINT)
        assert await run == DONE
    assert read(out, "run.json")["cache_state"] == "cold"
    summary = read(out, "summary.json")
    assert summary["failed"] == 0
    assert summary["server"]["external_prompt_tokens"] > 0
    assert summary["server"]["external_hit_rate"] > 0
    assert float(rows(out, "server_metrics.csv")[-1]["lmcache_rss_mb"]) > 50


def lmcache_is_seen(out: Path) -> bool:
    """Whether the engine has had prompts from LMCache in this run, which tells what it holds."""
    samples = rows(out, "server_metrics.csv")
    taken = [float(sample["external_prompt_tokens"] or 0) for sample in samples]
    held = [float(sample["lmcache_l1_memory_usage_bytes"] or 0) for sample in samples]
    return bool(samples) and taken[-1] > taken[0] and held[-1] > 0


async def test_the_death_of_lmcache_ends_the_target(target: RunningTarget) -> None:
    pids = target.facts()["pids"]
    os.kill(pids["lmcache"][0], signal.SIGKILL)
    assert "lmcache was ended by SIGKILL" in str(await target.wait_died())
    assert not any(map(psutil.pid_exists, pids["lmcache"]))
