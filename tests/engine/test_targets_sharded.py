"""Targets with nodes of a store: real vLLM, LMCache and valkey; a node dies, texts stay.

The tests that start a target of their own come first: the module's would run beside it.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import pytest
import pytest_asyncio
from redis.asyncio import Redis

from kv_tiers.store import valkey_servers
from loadgen.targets import engine_api
from loadgen.targets.catalog import load_catalog
from loadgen.targets.demo_model import build_model
from loadgen.targets.own_routes import KEY_VARIABLE
from loadgen.targets.plan import ServicePlan
from loadgen.targets.target import RunningTarget, TargetSettings, start_target
from loadgen.targets.valkey_nodes import BYTES, KEYS

pytestmark = [
    pytest.mark.engine,
    pytest.mark.timeout(1300),
    pytest.mark.asyncio(loop_scope="module"),
]

PROMPT_TOKENS, CHUNKS, CHUNK_TOKENS = 1300, 10, 128
COPIES, PROMPTS = 2, range(4)


@pytest.fixture(scope="module", autouse=True)
def not_compiled() -> Iterator[None]:
    """At the first reply with `logprobs` vLLM compiles what counts ranks, for half a minute."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCHDYNAMO_DISABLE", "1")
        yield


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def target(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RunningTarget]:
    directory = tmp_path_factory.mktemp("target")
    model = build_model(directory / "tiny", "tiny", ["A text to learn from. " * 20])
    settings = TargetSettings(str(model), kv_tokens=2560, l1_gb=0.25)
    spec = load_catalog()["vllm-lmcache-sharded"]
    async with start_target(spec, settings, directory / "log") as target:
        yield target


def plans(target: RunningTarget) -> dict[str, ServicePlan]:
    return {plan.role: plan for plan in target._group.plans}


async def reply(
    target: RunningTarget, start: int = 0, tokens: int = PROMPT_TOKENS
) -> dict[str, Any]:
    """The text and the most likely tokens of a prompt that begins in its own way."""
    prompt = [100 + start, *engine_api.fixed_prompt(tokens)]
    body = {"model": target.model, "prompt": prompt, "max_tokens": 8, "temperature": 0}
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{target.url}/v1/completions", json={**body, "logprobs": 1}) as response,
    ):
        (choice,) = (await response.json())["choices"]
    return {"text": choice["text"], "tokens": choice["logprobs"]["tokens"]}


async def after_own_prefix(target: RunningTarget, chunks: int) -> dict[str, Any]:
    """The reply with so many chunks in the engine's own cache. In bfloat16 it depends on where the
    computing begins: what came from elsewhere can only be held against the same number."""
    assert await target.make_cold() == "cold"
    if chunks:
        await reply(target, tokens=chunks * CHUNK_TOKENS)
    return await reply(target)


async def counted(target: RunningTarget, role: str, name: str) -> float:
    url = plans(target)[role].metrics_url
    assert url is not None
    return await engine_api.metric(url, name) or 0.0


async def hits(target: RunningTarget) -> float:
    """Tokens that came from nodes."""
    return await counted(target, "cache", "lmcache_mp_lookup_hit_l2_tokens_total")


async def value_bytes(port: str) -> int:
    """Of all chunks that a node has."""
    async with Redis(port=int(port), protocol=2) as client:
        return sum([await client.strlen(name) for name in await client.keys("kvswarm:*")])


async def kept(target: RunningTarget, chunks: int) -> None:
    """Return once so many chunks are on nodes: they are written behind the reply."""
    for _ in range(200):
        if await counted(target, "service", KEYS) >= chunks * COPIES:
            return
        await asyncio.sleep(0.05)
    raise AssertionError(f"{await counted(target, 'service', KEYS)} keys of {chunks} chunks")


async def empty_memory(target: RunningTarget) -> None:
    """All but the nodes."""
    for role, plan in plans(target).items():
        if role == "service":
            continue
        assert plan.reset_url is not None
        for _ in range(engine_api.RESET_TRIES):
            done = await engine_api.reset(plan.reset_url, plan.env[KEY_VARIABLE])
            used = 0.0 if role == "engine" else await counted(target, role, str(plan.empty_metric))
            if done and not used:
                break
            await asyncio.sleep(engine_api.RESET_PAUSE_S)
        else:
            raise AssertionError(f"the {role} did not reset")


async def replies(target: RunningTarget) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Of all prompts as computed, and as they are with their prefix in the engine's own cache: in
    bfloat16 the two may differ after some tokens. Afterwards all is on nodes only."""
    assert await target.make_cold() == "cold"
    computed, cached = [], []
    for start in PROMPTS:
        computed.append(await reply(target, start))
        cached.append(await reply(target, start))
    await kept(target, CHUNKS * len(PROMPTS))
    await empty_memory(target)
    return computed, cached


@contextlib.asynccontextmanager
async def of_another_region(
    target: RunningTarget, settings: TargetSettings, directory: Path
) -> AsyncIterator[tuple[RunningTarget, psutil.Process]]:
    """vLLM and LMCache with the centre of `target` behind the same link, and the node near them."""
    service = plans(target)["service"].argv
    centre = f"127.0.0.1:{service[service.index('--link') + 1]}"
    async with valkey_servers([None]) as ((near, node),):
        params = {"nodes": [near], "central": [centre], "codec": settings.kv_codec}
        module = {"module_path": "kv_tiers.lmcache_adapter", "class_name": "StoreAdapter"}
        adapter = json.dumps({"type": "plugin", **module, "adapter_params": params})
        file = directory / "west.toml"
        arguments = f"cache_args = ['--l2-adapter', '{adapter}']"
        file.write_text(f"[targets.west]\nextends = 'vllm-lmcache'\n{arguments}\n")
        spec = load_catalog(file)["west"]
        async with start_target(spec, settings, directory / "west") as west:
            yield west, psutil.Process(node.pid)


async def test_two_regions_share_a_centre_behind_a_link_and_go_on_when_a_node_dies(
    tmp_path: Path,
) -> None:
    """Their nodes hold the same values in a codec: a byte each, and scales of groups."""
    model = build_model(tmp_path / "tiny", "tiny", ["A text to learn from. " * 20])
    config = json.loads((model / "config.json").read_text())
    heads, hidden = config["num_attention_heads"], config["hidden_size"]
    token_values = 2 * config["num_hidden_layers"] * config["num_key_value_heads"] * hidden // heads
    settings = TargetSettings(str(model), kv_tokens=2560, l1_gb=0.25, kv_codec="int8")
    spec = load_catalog()["vllm-lmcache-regional"]
    async with start_target(spec, settings, tmp_path / "log") as east:
        await reply(east)
        await kept(east, CHUNKS + 1)  # on both nodes, each with a journal
        service = plans(east)["service"].argv
        for port in service[service.index("--nodes") + 1 :][:2]:
            per_value = await value_bytes(port) / (CHUNKS * CHUNK_TOKENS * token_values)
            assert 1 < per_value < 1.2
        async with of_another_region(east, settings, tmp_path) as (west, wests):
            both = (east, west)
            await empty_memory(east)
            found = [*(await from_nodes(east)), *(await from_nodes(west))]
            nodes = psutil.Process(east.facts()["pids"]["valkey_regional"][0]).children()
            for near in (min(nodes, key=psutil.Process.create_time), wests):
                near.kill()
            await asyncio.gather(*map(empty_memory, both))
            found += await from_nodes(*both)
            assert [each["tokens"] for each in found] == [found[0]["tokens"]] * 4
            assert len(found[0]["tokens"]) == 8
            for each in both:
                each.check()


async def from_nodes(*targets: RunningTarget) -> list[dict[str, Any]]:
    """What they reply, all at once, with every chunk from nodes."""
    before = [await hits(each) for each in targets]
    found = await asyncio.gather(*map(reply, targets))
    after = [await hits(each) for each in targets]
    assert [new - old for new, old in zip(after, before, strict=True)] == (
        [CHUNKS * CHUNK_TOKENS] * len(targets)
    )
    return found


async def test_nodes_behind_vllms_own_offload_give_back_what_they_were_given(
    tmp_path: Path,
) -> None:
    model = build_model(tmp_path / "tiny", "tiny", ["A text to learn from. " * 20])
    settings = TargetSettings(str(model), kv_tokens=2560, l1_gb=0.25)
    spec = load_catalog()["vllm-offload-sharded"]
    source = "vllm:external_prefix_cache_hits_total"
    async with start_target(spec, settings, tmp_path / "log") as target:
        assert await target.make_cold() == "cold"
        computed, cached = await reply(target), await reply(target)
        await kept(target, CHUNKS)
        for node in psutil.Process(target.facts()["pids"]["valkey3"][0]).children()[:2]:
            await empty_memory(target)
            before = await counted(target, "engine", source)
            assert await reply(target) == cached
            assert await counted(target, "engine", source) - before == CHUNKS * CHUNK_TOKENS
            node.kill()
            node.wait(10)
        await empty_memory(target)
        before = await counted(target, "engine", source)
        found = await reply(target)
        chunks = (await counted(target, "engine", source) - before) / CHUNK_TOKENS
        target.check()
        assert found == await after_own_prefix(target, int(chunks))
        assert await target.make_cold() == "cold"
        before = await counted(target, "engine", source)
        assert await reply(target) == computed
        assert await counted(target, "engine", source) == before, "the nodes are empty too"


async def test_prompts_come_back_from_the_nodes_as_they_were(target: RunningTarget) -> None:
    computed, cached = await replies(target)
    assert await counted(target, "service", BYTES) > 0
    before = await hits(target)
    assert [await reply(target, start) for start in PROMPTS] == cached
    assert await hits(target) - before == len(PROMPTS) * CHUNKS * CHUNK_TOKENS
    assert await target.make_cold() == "cold"
    before = await hits(target)
    assert [await reply(target, start) for start in PROMPTS] == computed
    assert await hits(target) == before, "cold means that the nodes are empty too"


async def test_one_dead_node_costs_nothing_and_two_only_hits(target: RunningTarget) -> None:
    computed, cached = await replies(target)
    nodes = psutil.Process(target.facts()["pids"]["valkey3"][0]).children()
    assert len(nodes) == 3
    for at, node in enumerate(nodes[:2]):
        node.kill()
        node.wait(10)
        await empty_memory(target)
        before = await hits(target)
        found = [await reply(target, start) for start in PROMPTS]
        whole = (await hits(target) - before) / (CHUNKS * CHUNK_TOKENS)
        if at == 0:
            assert (found, whole) == (cached, len(PROMPTS))
        else:
            assert 0 <= whole <= len(PROMPTS)
            assert all(text in those for text, *those in zip(found, computed, cached, strict=True))
    target.check()
    assert await target.make_cold() == "cold"
