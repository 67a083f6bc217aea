"""Engines with a node of their region, or behind vLLM's own offload; nodes die, texts stay."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest
from store_engines import (
    CHUNK_TOKENS,
    CHUNKS,
    after_own_prefix,
    counted,
    empty_memory,
    from_nodes,
    kept,
    plans,
    reply,
    value_bytes,
)

from kv_tiers.store import valkey_servers
from loadgen.targets.catalog import load_catalog
from loadgen.targets.demo_model import build_model
from loadgen.targets.target import RunningTarget, TargetSettings, start_target

pytestmark = [
    pytest.mark.engine,
    pytest.mark.usefixtures("not_compiled"),
    pytest.mark.timeout(1300),
    pytest.mark.asyncio(loop_scope="module"),
]


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
            found = [*(await from_nodes((east, 0))), *(await from_nodes((west, 0)))]
            nodes = psutil.Process(east.facts()["pids"]["valkey_regional"][0]).children()
            for near in (min(nodes, key=psutil.Process.create_time), wests):
                near.kill()
            await asyncio.gather(*map(empty_memory, both))
            found += await from_nodes((east, 0), (west, 0))
            assert [each["tokens"] for each in found] == [found[0]["tokens"]] * 4
            assert len(found[0]["tokens"]) == 8
            for each in both:
                each.check()


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
