"""Valkey nodes behind vLLM's own offload, without a model: what they give back is right, or not."""

import mmap
import signal
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
from digest_engine import DigestEngine, tier
from redis import Redis
from test_tiers_cells import CONTEXTS, Mixture, ask, one_by_one
from vllm.v1.kv_offload.base import ReqContext, make_offload_key
from vllm.v1.kv_offload.config import (
    OffloadingCacheConfig,
    OffloadingConfig,
    OffloadingGroupConfig,
    OffloadingModelConfig,
    OffloadingParallelConfig,
)
from vllm.v1.kv_offload.tiering.base import JobResult, TransferJob

from kv_tiers.store import valkey_servers
from kv_tiers.vllm_tier import StoreTier

Servers = list[tuple[str, Process]]
TAILS = sum((len(ask(n, n).prompt) - 5) % 16 + 5 for n in range(CONTEXTS))
"""What lies behind the full blocks of a context, when each has been asked once."""
LEAST = TAILS + CONTEXTS
"""With the second token of each reply."""
CONFIG = OffloadingConfig(
    groups=(OffloadingGroupConfig(16, ("layer.0",), 0),),
    worker_kv_bytes_per_block=4096,
    enable_kv_cache_events=False,
    extra_config={},
    engine_id="engine",
    model=OffloadingModelConfig("model", "bfloat16"),
    cache=OffloadingCacheConfig(tokens_per_hash=16, blocks_per_chunk=1),
    parallel=OffloadingParallelConfig(
        rank=0,
        world_size=1,
        tp_size=1,
        pp_size=1,
        pcp_size=1,
        dcp_size=1,
        data_parallel_index=0,
        data_parallel_size=1,
        data_parallel_rank_local=None,
        is_parallelism_agnostic=True,
    ),
)
OF_TWO = replace(CONFIG.parallel, world_size=2, tp_size=2)


@contextmanager
def store_tier(
    rows: memoryview, nodes: Sequence[str] = ("127.0.0.1:1",), **changes: Any
) -> Iterator[StoreTier]:
    """Without any engine; its usual nodes are asked by nobody."""
    spec: Any = SimpleNamespace(config=replace(CONFIG, **changes), blocks_per_chunk=1)
    patience = {"node_deadline_s": 5.0, "load_deadline_s": 30.0}
    tier = StoreTier(spec, rows, "StoreTier", nodes=nodes, **patience)
    try:
        yield tier
    finally:
        tier.shutdown()


@pytest_asyncio.fixture
async def servers() -> AsyncIterator[Servers]:
    async with valkey_servers([None] * 2) as running:
        yield running


def addresses(servers: Servers) -> list[str]:
    return [address for address, _ in servers]


def client(address: str) -> "Redis[bytes]":
    return Redis(host="127.0.0.1", port=int(address.split(":")[1]))


def patient(extra: dict[str, Any]) -> dict[str, Any]:
    """A busy machine makes no node late: what is late is computed, as if it were not there."""
    extra["secondary_tiers"][0] |= {"node_deadline_s": 5.0, "load_deadline_s": 30.0}
    return extra


def left_behind() -> list[Path]:
    return [*Path("/dev/shm").glob("vllm_offload_digest-*")]


@pytest.mark.parametrize(("chunks", "blocks_per_chunk"), [(30, 1), (14, 3)])
async def test_no_cell_that_comes_from_a_node_is_of_other_tokens(
    servers: Servers, chunks: int, blocks_per_chunk: int, tmp_path: Path
) -> None:
    nodes = addresses(servers)
    extra = tier("nodes", chunks, tmp_path, nodes, blocks_per_chunk=blocks_per_chunk)
    with DigestEngine(40, extra) as engine:
        Mixture(chunks, engine).run()
        assert engine.loaded_bytes > 0, "nothing came from the tier"
        assert (engine.wrong, engine.checked > 50_000) == (0, True)


async def test_nodes_are_read_by_the_next_engine_and_hold_what_memory_cannot(
    servers: Servers, tmp_path: Path
) -> None:
    extra = patient(tier("nodes", 16, tmp_path, addresses(servers)))
    with DigestEngine(24, extra) as engine:
        one_by_one(engine, rounds=1)
    with DigestEngine(24, extra) as engine:
        one_by_one(engine, rounds=1)
        assert (engine.wrong, engine.computed_tokens) == (0, LEAST)
    assert not left_behind()


def kill(process: Process) -> None:
    process.kill()


def hang(process: Process) -> None:
    process.send_signal(signal.SIGSTOP)


@pytest.mark.parametrize("stop", [kill, hang])
@pytest.mark.parametrize("lost", [1, 2])
async def test_nodes_that_die_cost_their_hits_and_nothing_else(
    servers: Servers, stop: Callable[[Process], None], lost: int, tmp_path: Path
) -> None:
    """With two copies one of two nodes is as good as both."""
    extra = patient(tier("nodes", 16, tmp_path, addresses(servers)))
    with DigestEngine(24, extra) as engine:
        one_by_one(engine, rounds=1)
        first = engine.computed_tokens
        for _, process in servers[:lost]:
            stop(process)
        one_by_one(engine, rounds=1)
        again = engine.computed_tokens - first
        assert engine.wrong == 0
        assert (again == LEAST) is (lost == 1)
        assert again == (LEAST if lost == 1 else first)


async def test_a_frame_with_a_wrong_byte_is_computed_again(
    servers: Servers, tmp_path: Path
) -> None:
    extra = tier("nodes", 16, tmp_path, addresses(servers)[:1])
    with DigestEngine(24, extra) as engine:
        one_by_one(engine, rounds=1)
        first = engine.computed_tokens
        with client(servers[0][0]) as node:
            names = [*node.scan_iter()]
            assert names
            for name in names:
                whole = node.get(name)
                assert isinstance(whole, bytes)
                node.set(name, whole[:-9] + bytes([whole[-9] ^ 1]) + whole[-8:])
        one_by_one(engine, rounds=1)
        assert (engine.wrong, engine.computed_tokens - first) == (0, first)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"codec": "zip"}, "unknown codec 'zip'"),
        ({"run_chunks": 2}, "asks for each chunk by itself"),
        ({"speed": 1}, "unknown setting 'speed'"),
        ({"nodes": "here"}, "must be a list of host:port"),
    ],
)
def test_settings_that_cannot_be_are_refused(
    wrong: dict[str, object], said: str, tmp_path: Path
) -> None:
    extra = tier("nodes", 16, tmp_path, ["127.0.0.1:1"])
    extra["secondary_tiers"][0] |= wrong
    with pytest.raises(ValueError, match=said):
        DigestEngine(24, extra)


@pytest.mark.parametrize(
    "changes", [{"kv_cache_layout": "LBHNC"}, {"parallel": OF_TWO}], ids=["layout", "of two"]
)
def test_chunks_that_are_laid_out_otherwise_have_other_names_and_frames(
    changes: dict[str, Any],
) -> None:
    rows = memoryview(bytearray(2 * 4096)).cast("B", (2, 4096))
    key = make_offload_key(b"a hash of its tokens", 0)
    usual: dict[str, Any] = {"kv_cache_layout": "LBNHC"}
    with store_tier(rows, **usual) as one, store_tier(rows, **(usual | changes)) as other:
        assert one._name(key) != other._name(key)
        assert one._chunk(0).layout != other._chunk(0).layout
    with store_tier(rows, **usual) as one, store_tier(rows, **usual) as other:
        assert one._name(key) == other._name(key)


async def test_kv_of_fewer_bytes_under_the_same_name_is_a_miss(servers: Servers) -> None:
    """As another model of one name leaves it: the rest of the row would be of who had it before."""
    key, nodes = make_offload_key(b"a hash of its tokens", 0), addresses(servers)
    done: list[JobResult] = []
    for size, is_stored in ((2048, True), (4096, False)):
        rows = memoryview(bytearray(b"x" * 2 * size)).cast("B", (2, size))
        with store_tier(rows, nodes, parallel=OF_TWO) as one:
            job = TransferJob(size, [key], np.array([0]), True, ReqContext("r"))
            (one.submit_store if is_stored else one.submit_load)(job)
            one.drain_jobs()
            done += one.get_finished_jobs()
    assert [(each.success, each.successful_keys) for each in done] == [(True, None), (False, None)]
    assert [each.transfer_bytes for each in done] == [2048, 0], "of KV, and not of frames"


def test_a_tier_that_has_ended_holds_no_memory_of_the_engine() -> None:
    memory = mmap.mmap(-1, 2 * 4096)
    rows = memoryview(memory).cast("B", (2, 4096))
    with store_tier(rows) as tier:
        assert len(tier._chunk(1).content) == 4096
    rows.release()
    memory.close()
