"""The target `vllm-tiered` with a real vLLM: what its tiers give back is what its cache holds."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
import pytest_asyncio
from engine_runs import log_probabilities

from kv_tiers.checked_file import checksum
from loadgen.targets import engine_api
from loadgen.targets.catalog import load_catalog
from loadgen.targets.demo_model import build_model
from loadgen.targets.own_routes import KEY_VARIABLE
from loadgen.targets.target import RunningTarget, TargetSettings, start_target

pytestmark = [
    pytest.mark.engine,
    pytest.mark.timeout(1300),
    pytest.mark.asyncio(loop_scope="module"),
]

PROMPT_TOKENS, FULL_TOKENS, CHUNK_TOKENS = 1300, 1280, 128
SOURCES = ("device", "host", "disk")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def target(
    not_compiled: None, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[RunningTarget]:
    directory = tmp_path_factory.mktemp("target")
    model = build_model(directory / "tiny", "tiny", ["A text to learn from. " * 20])
    settings = TargetSettings(str(model), kv_tokens=2560, l1_gb=0.1, l2_dir=directory)
    spec = load_catalog()["vllm-tiered"]
    async with start_target(spec, settings, directory / "log") as target:
        yield target
    assert not list(directory.glob("kvswarm-*")), "its files go with it"


async def tokens_by_source(target: RunningTarget) -> dict[str, float]:
    url = target.facts()["metrics_urls"]["vllm"]
    name = "vllm:prompt_tokens_cached_by_source_total"
    async with aiohttp.ClientSession() as session, session.get(url) as response:
        lines = [line for line in (await response.text()).splitlines() if line.startswith(name)]
    return {
        source: sum(float(line.split()[-1]) for line in lines if f'source="{source}"' in line)
        for source in SOURCES
    }


async def empty(target: RunningTarget, route: str) -> None:
    (engine,) = target._group.plans
    for _ in range(engine_api.RESET_TRIES):
        if await engine_api.reset(engine.url + route, engine.env[KEY_VARIABLE]):
            return
    raise AssertionError("the engine did not reset")


async def test_each_tier_gives_back_what_the_engines_own_cache_holds(
    target: RunningTarget,
) -> None:
    assert await target.make_cold() == "cold"
    await log_probabilities(target, PROMPT_TOKENS)
    expected, told = {}, {}
    for source, route in (
        ("device", None),
        ("host", "/reset_prefix_cache"),
        ("disk", "/reset_prefix_cache?reset_external=true"),
    ):
        if route is not None:
            await empty(target, route)
        before = await tokens_by_source(target)
        expected[source] = await log_probabilities(target, PROMPT_TOKENS)
        after = await tokens_by_source(target)
        told[source] = {name: after[name] - before[name] for name in SOURCES}
    assert told == {
        source: {name: FULL_TOKENS * (name == source) for name in SOURCES} for source in SOURCES
    }
    assert expected["host"] == expected["device"]
    assert expected["disk"] == expected["device"]


async def stored_files(target: RunningTarget) -> list[Path]:
    """All of the fixed prompt's. What a request leaves to be stored goes with the steps of the
    next."""
    (engine,) = target._group.plans
    assert engine.l2_dir is not None
    for _ in range(20):
        await log_probabilities(target, PROMPT_TOKENS)
        files = sorted(engine.l2_dir.rglob("*.bin"))
        if len(files) >= FULL_TOKENS // CHUNK_TOKENS:
            return files
        await asyncio.sleep(0.1)
    raise AssertionError("the files were not written")


async def test_damaged_files_are_computed_again(target: RunningTarget) -> None:
    assert await target.make_cold() == "cold"
    computed = await log_probabilities(target, PROMPT_TOKENS)
    for path in await stored_files(target):
        content = bytearray(path.read_bytes())
        content[len(content) // 3] ^= 1
        path.write_bytes(content)
    await empty(target, "/reset_prefix_cache?reset_external=true")
    before = await tokens_by_source(target)
    assert await log_probabilities(target, PROMPT_TOKENS) == computed
    assert await tokens_by_source(target) == before


async def test_wrong_bytes_that_are_believed_show_in_the_log_probabilities(
    target: RunningTarget,
) -> None:
    """The control of the tests above: zeros, with checksums of zeros."""
    assert await target.make_cold() == "cold"
    computed = await log_probabilities(target, PROMPT_TOKENS)
    (engine,) = target._group.plans
    assert engine.l2_dir is not None
    for path in await stored_files(target):
        content = bytes(path.stat().st_size)
        path.write_bytes(content)
        name = path.relative_to(engine.l2_dir).as_posix()
        path.with_suffix(".sum").write_bytes(checksum(name, content))
    await empty(target, "/reset_prefix_cache?reset_external=true")
    before = await tokens_by_source(target)
    assert await log_probabilities(target, PROMPT_TOKENS) != computed
    assert (await tokens_by_source(target))["disk"] - before["disk"] == FULL_TOKENS


async def test_cold_means_that_memory_and_files_are_empty_too(target: RunningTarget) -> None:
    pids = target.facts()["pids"]
    await log_probabilities(target, PROMPT_TOKENS)
    assert await target.make_cold() == "cold"
    before = await tokens_by_source(target)
    await log_probabilities(target, PROMPT_TOKENS)
    assert await tokens_by_source(target) == before
    assert target.facts()["pids"] == pids, "without a restart"
