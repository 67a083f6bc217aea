"""Engines before nodes of a store: what tests ask of them, and how they start."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
from redis.asyncio import Redis

from loadgen.targets import engine_api
from loadgen.targets.catalog import ServiceSpec, load_catalog
from loadgen.targets.own_routes import KEY_HEADER, KEY_VARIABLE
from loadgen.targets.plan import ServicePlan
from loadgen.targets.target import RunningTarget, TargetSettings, start_target
from loadgen.targets.valkey_nodes import KEYS

PROMPT_TOKENS, CHUNKS, CHUNK_TOKENS = 1300, 10, 128
COPIES, NO_DEADLINE_S = 2, 60


class Engine:
    """vLLM and LMCache before nodes, with a file of settings that may change."""

    def __init__(self, target: RunningTarget, file: Path) -> None:
        self.target, self._file = target, file
        self._told: dict[str, Any] = {}

    async def change(self, **settings: Any) -> None:
        """Return once they are in force, and nothing moves any more."""
        self._told |= settings
        self._file.write_text(json.dumps(self._told))
        for _ in range(1200):
            now = await self.status()
            if settings.items() <= now.items() and not now["is_moving"]:
                return
            await asyncio.sleep(0.05)
        raise AssertionError(f"{now} lacks {settings}")

    async def status(self) -> dict[str, Any]:
        """What the store says of itself on a route of LMCache's."""
        cache = plans(self.target)["cache"]
        assert cache.reset_url is not None
        url = cache.reset_url.partition("/cache")[0] + "/status"
        key = {KEY_HEADER: cache.env[KEY_VARIABLE]}
        async with aiohttp.ClientSession() as session, session.get(url, headers=key) as response:
            assert response.status == 200, await response.text()
            return adapters(await response.json())[0]


def adapters(said: object) -> list[dict[str, Any]]:
    """What the store's says, at each place at which it stands."""
    if isinstance(said, list):
        return [found for each in said for found in adapters(each)]
    if not isinstance(said, dict):
        return []
    return [said] if "adaptive_chunks" in said else adapters([*said.values()])


@contextlib.asynccontextmanager
async def started(
    model: Path, directory: Path, nodes: Sequence[str] = (), profile: Path | None = None
) -> AsyncIterator[Engine]:
    """`vllm-lmcache-sharded` whose store has no deadline, and a file; before other nodes than its
    own where there are any. Keys have the model's path in them."""
    settings = TargetSettings(str(model), kv_tokens=2560, l1_gb=0.25)
    file = directory / "settings.json"
    file.write_text("{}")
    changed = {"node_deadline_s": 30, "load_deadline_s": NO_DEADLINE_S, "file": str(file)}
    if profile is not None:
        changed["profile"] = str(profile)
    spec = load_catalog()["vllm-lmcache-sharded"]
    services = [each for each in spec.services if each.role != "service" or not nodes]
    if nodes:
        changed["nodes"] = [*nodes]
    of_it = tuple(with_store(each, changed) if each.role == "cache" else each for each in services)
    async with start_target(replace(spec, services=of_it), settings, directory / "log") as target:
        yield Engine(target, file)


def with_store(cache: ServiceSpec, changed: Mapping[str, Any]) -> ServiceSpec:
    """Other settings of the store behind it."""
    *words, adapter = cache.argv
    told = json.loads(adapter)
    told["adapter_params"] |= changed
    return replace(cache, argv=(*words, json.dumps(told)))


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


async def first_logprobs(target: RunningTarget, prompt: list[int]) -> dict[str, float]:
    """Of the most likely tokens after it."""
    body = {"model": target.model, "prompt": prompt, "max_tokens": 1, "temperature": 0}
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{target.url}/v1/completions", json={**body, "logprobs": 20}) as response,
    ):
        (choice,) = (await response.json())["choices"]
    (found,) = choice["logprobs"]["top_logprobs"]
    return dict(found)


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


async def from_nodes(*asked: tuple[RunningTarget, int]) -> list[dict[str, Any]]:
    """What targets reply to prompts, all at once, with every chunk from nodes."""
    targets = {id(target): target for target, _ in asked}.values()
    before = sum([await hits(each) for each in targets])
    found = await asyncio.gather(*(reply(target, start) for target, start in asked))
    after = sum([await hits(each) for each in targets])
    assert (after - before) / CHUNK_TOKENS == CHUNKS * len(asked)
    return found
