"""Models whose layers differ: each group of them takes blocks of its own from one pool."""

import pytest
import torch
from ask import Ask
from computed_bound import lower_bound
from engine_shape import EngineShape, build_scheduler, settings
from queue_invariants import all_done
from virtual_engine import VirtualEngine
from virtual_load import Mix, shuffled, tokens
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheSpec,
    SlidingWindowSpec,
)

from scheduler_plugin.queue import SchedulerView

LAYER = {"num_kv_heads": 2, "head_size": 64, "dtype": torch.bfloat16}
REUSE = settings(policy="reuse")


def full(block_size: int = 128) -> FullAttentionSpec:
    return FullAttentionSpec(block_size=block_size, **LAYER)


def window(size: int, block_size: int = 128) -> SlidingWindowSpec:
    return SlidingWindowSpec(block_size=block_size, sliding_window=size, **LAYER)


def hybrid(shape: EngineShape, *specs: KVCacheSpec) -> Scheduler:
    """A scheduler of a model with such groups of layers, as vLLM makes them by default: of a
    window only what a prompt's end needs stays in the cache."""
    plain = build_scheduler(shape)
    groups = [KVCacheGroupSpec([f"layer-{n}"], spec) for n, spec in enumerate(specs)]
    return type(plain)(
        vllm_config=plain.vllm_config,
        kv_cache_config=KVCacheConfig(
            num_blocks=shape.usable_blocks + 1,
            kv_cache_tensors=[],
            kv_cache_groups=groups,
            prefix_cache_retention_interval=0,
        ),
        structured_output_manager=plain.structured_output_manager,
        block_size=max(spec.block_size for spec in specs),
        hash_block_size=min(spec.block_size for spec in specs),
        include_finished_set=False,
        log_stats=True,
    )


def engine_of(shape: EngineShape, *specs: KVCacheSpec) -> VirtualEngine:
    engine = VirtualEngine(shape)
    engine.scheduler = hybrid(shape, *specs)
    engine.scheduler.clock_s = lambda: engine.now_s
    return engine


def computed(asks: list[Ask], shape: EngineShape, *specs: KVCacheSpec) -> int:
    """Prompt tokens."""
    engine = engine_of(shape, *specs)
    ledger = engine.run(asks)
    all_done(engine, {ask.name for ask in asks})
    return ledger.computed_tokens


@pytest.mark.parametrize(
    "specs",
    [
        (full(),),
        (full(), full()),
        (full(), window(256), window(256), window(256)),
        (full(), window(256, block_size=256)),
    ],
    ids=["one", "two", "windows", "sizes"],
)
def test_a_request_is_counted_with_all_blocks_that_vllm_gives_it(
    specs: tuple[KVCacheSpec, ...],
) -> None:
    shape = EngineShape(usable_blocks=200, max_num_batched_tokens=512, plugin=REUSE)
    engine = engine_of(shape, *specs)
    view = SchedulerView(engine.scheduler)
    request = engine.submit(Ask("one", "a", tokens(1630, "one")))
    expected, held = view.blocks_of(request), 0
    while engine.step():
        held = max(held, 200 - view.free_blocks())
        assert held + view.reserved_blocks() <= expected
    assert held <= expected <= 1.25 * held


def test_two_groups_of_full_attention_are_at_the_lower_bound_like_one() -> None:
    for seed in range(3):
        asks = shuffled(Mix(seed=seed))
        for blocks in (40, 80):
            shape = EngineShape(usable_blocks=blocks, plugin=REUSE)
            least = lower_bound([ask.prompt for ask in asks], 128)
            assert computed(asks, shape, full(), full()) == least
