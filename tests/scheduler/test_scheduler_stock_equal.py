"""Where the plugin has nothing to reorder it does what stock does, step by step."""

import random
from dataclasses import replace

import pytest
from ask import Ask
from engine_shape import EngineShape, settings
from queue_invariants import all_done
from virtual_engine import VirtualEngine
from virtual_load import Mix, poisson, shuffled, tokens

from loadgen.twin.ledger import EngineLedger


def both(
    asks: list[Ask], shape: EngineShape, **plugin: object
) -> tuple[EngineLedger, EngineLedger]:
    ledgers = []
    for one in (shape, replace(shape, plugin=settings(**plugin))):
        engine = VirtualEngine(one)
        ledgers.append(engine.run(asks))
        all_done(engine, {ask.name for ask in asks})
    return ledgers[0], ledgers[1]


def rough(seed: int) -> tuple[list[Ask], EngineShape]:
    """A random mixture with preemptions: long replies, few blocks, LoRA, grammar, lookups."""
    dice = random.Random(seed)
    shape = EngineShape(
        usable_blocks=dice.choice([40, 60, 120]),
        block_size=16,
        max_num_seqs=dice.choice([2, 8, 64]),
        max_num_batched_tokens=dice.choice([64, 256, 2048]),
        async_scheduling=dice.random() < 0.5,
        max_loras=dice.choice([0, 1, 2]),
        pending_lookups=dice.choice([None, None, 1, 3]),
    )
    asks = []
    for number in range(60):
        context = dice.randrange(6)
        start = tokens(dice.choice([0, 40, 200]), "rough", seed, context)
        end = tokens(dice.randint(1, 80), "end", seed, number)
        asks.append(
            Ask(
                f"r{number}",
                f"c{context}",
                start + end,
                arrival_s=dice.choice([0.0, dice.uniform(0, 1)]),
                output_tokens=dice.choice([1, 8, 120]),
                lora=dice.randint(0, 3) if shape.max_loras else 0,
                grammar_s=dice.choice([None, None, None, 0.1]),
            )
        )
    return asks, shape


@pytest.mark.parametrize("seed", range(25))
def test_fcfs_is_stock_decision_for_decision(seed: int) -> None:
    asks, shape = rough(seed)
    stock, ours = both(asks, shape, policy="fcfs")
    assert ours.steps == stock.steps
    assert ours.latencies_s() == stock.latencies_s()


def test_the_random_mixtures_do_preempt() -> None:
    preempted = 0
    for seed in range(8):
        asks, shape = rough(seed)
        preempted += sum(len(s.preempted) for s in VirtualEngine(shape).run(asks).steps)
    assert preempted > 20


def test_with_preemptions_reuse_computes_no_more_than_stock() -> None:
    ours_tokens = stock_tokens = 0
    for seed in range(5):
        asks, shape = rough(seed)
        ledgers = both(asks, replace(shape, pending_lookups=None))
        stock, ours = (each.computed_tokens + each.replayed_tokens for each in ledgers)
        assert ours <= stock, seed
        ours_tokens, stock_tokens = ours_tokens + ours, stock_tokens + stock
    assert ours_tokens < 0.9 * stock_tokens


@pytest.mark.parametrize("seed", range(4))
def test_fcfs_with_priorities_is_stock(seed: int) -> None:
    asks, shape = rough(seed)
    asks = [replace(a, priority=n % 3) for n, a in enumerate(asks)]
    stock, ours = both(asks, replace(shape, vllm_policy="priority"), policy="fcfs")
    assert ours.steps == stock.steps


@pytest.mark.parametrize("policy", ["prefix-group", "lpm"])
def test_order_is_stock_while_usage_is_below_its_threshold(policy: str) -> None:
    mix = Mix(contexts=8)
    asks = poisson(mix, rate=6.0, count=120)
    shape = EngineShape(usable_blocks=2000)
    stock, ours = both(asks, shape, policy=policy, min_kv_usage=0.5)
    assert ours.steps == stock.steps


def test_the_threshold_is_what_keeps_that_order() -> None:
    asks = shuffled(Mix(contexts=8, per_context=8))
    stock, ours = both(asks, EngineShape(usable_blocks=2000), policy="lpm", min_kv_usage=0.0)
    assert ours.order != stock.order
    stock, ours = both(asks, EngineShape(usable_blocks=2000), policy="lpm", min_kv_usage=0.9)
    assert ours.order == stock.order


def test_above_the_threshold_contexts_are_grouped() -> None:
    asks = shuffled(Mix())
    stock, ours = both(asks, EngineShape(usable_blocks=20), policy="lpm", min_kv_usage=0.3)
    assert ours.computed_tokens < 0.6 * stock.computed_tokens


@pytest.mark.parametrize("policy", ["prefix-group", "lpm"])
@pytest.mark.parametrize("key", ["label", "prefix"])
def test_requests_without_anything_in_common_are_served_in_stock_order(
    policy: str, key: str
) -> None:
    """Prompts below one block and others, each its own context."""
    lengths = [5, 40, 300, 90, 127, 128, 129] * 8
    asks = [Ask(f"r{n}", f"own-{n}", tokens(k, "own", n)) for n, k in enumerate(lengths)]
    stock, ours = both(asks, EngineShape(usable_blocks=20), policy=policy, key=key)
    assert ours.order == stock.order
