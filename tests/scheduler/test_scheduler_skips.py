"""Requests that vLLM passes over for a step come back to their place and hold nobody up."""

from dataclasses import replace

import pytest
from ask import Ask
from computed_bound import lower_bound
from engine_shape import EngineShape, settings
from queue_invariants import FifoInContext, all_done, nothing_lost, work_conserving
from virtual_engine import VirtualEngine
from virtual_load import Mix, grouped, shuffled
from vllm.v1.core.sched.output import SchedulerOutput

POLICIES = ("fcfs", "prefix-group", "lpm", "reuse")


def checked(shape: EngineShape, **plugin: object) -> VirtualEngine:
    fifo = FifoInContext()

    def check(engine: VirtualEngine, output: SchedulerOutput) -> None:
        nothing_lost(engine)
        if not shape.async_scheduling:
            work_conserving(engine, output)
        if plugin["policy"] in ("prefix-group", "lpm"):
            fifo(engine, output)

    return VirtualEngine(replace(shape, plugin=settings(**plugin)), on_step=check)


def names(asks: list[Ask]) -> set[str]:
    return {ask.name for ask in asks}


def contexts(order: list[str]) -> list[str]:
    """The turns of an order: context names without their repetitions."""
    runs = [name.split("-")[0] for name in order]
    return [run for place, run in enumerate(runs) if place == 0 or runs[place - 1] != run]


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("lookups", [1, 3])
def test_pending_lookups_do_not_freeze_the_order(policy: str, lookups: int, is_async: bool) -> None:
    """All requests are scanned and skipped at first; later the cache decides who is next."""
    shape = EngineShape(usable_blocks=20, pending_lookups=lookups, async_scheduling=is_async)
    asks = shuffled(Mix())
    engine = checked(shape, policy=policy)
    ledger = engine.run(asks)
    all_done(engine, names(asks))
    if policy == "fcfs":
        assert ledger.order == [ask.name for ask in asks]
    else:
        assert ledger.computed_tokens == lower_bound([ask.prompt for ask in asks], 128)
        assert len(contexts(ledger.order)) == 6


def test_requests_that_arrive_after_the_first_scan_join_their_context() -> None:
    early = [replace(a, arrival_s=0.0) for a in shuffled(Mix(per_context=3))]
    late = [a for a in shuffled(Mix(per_context=6)) if a.name not in names(early)]
    late = [replace(a, arrival_s=0.05) for a in late]
    engine = checked(EngineShape(usable_blocks=20, pending_lookups=1), policy="lpm")
    ledger = engine.run(early + late)
    all_done(engine, names(early + late))
    assert ledger.computed_tokens == lower_bound([a.prompt for a in early + late], 128)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("in_background", [False, True])
def test_external_tokens(policy: str, in_background: bool) -> None:
    shape = EngineShape(
        usable_blocks=40,
        pending_lookups=1,
        external_tokens=1024,
        load_in_background=in_background,
        max_num_seqs=8,
    )
    asks = shuffled(Mix())
    engine = checked(shape, policy=policy)
    ledger = engine.run(asks)
    all_done(engine, names(asks))
    assert ledger.computed_tokens == ledger.reported_tokens
    assert ledger.computed_tokens < lower_bound([ask.prompt for ask in asks], 128)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("is_async", [False, True])
def test_a_grammar_in_the_making_holds_nobody_up(policy: str, is_async: bool) -> None:
    """The oldest request waits 5 s for its grammar; all others are served meanwhile."""
    asks = shuffled(Mix())
    asks[0] = replace(asks[0], grammar_s=5.0)
    asks[7] = replace(asks[7], grammar_s=0.3)
    engine = checked(EngineShape(usable_blocks=20, async_scheduling=is_async), policy=policy)
    ledger = engine.run(asks)
    all_done(engine, names(asks))
    assert ledger.order[-1] == asks[0].name or policy == "fcfs"
    others = max(time for name, time in ledger.finished_s.items() if name != asks[0].name)
    assert ledger.finished_s[asks[0].name] >= 5.0
    assert others < 5.0 or policy == "fcfs"


def test_a_skipped_request_regains_its_place_in_its_context() -> None:
    """Its grammar is ready while its context still waits: it goes before its younger ones."""
    asks = grouped(Mix(contexts=2, per_context=8))
    asks[8] = replace(asks[8], grammar_s=0.05)
    shape = EngineShape(usable_blocks=20, max_num_seqs=2)
    ledger = checked(shape, policy="prefix-group").run(asks)
    assert ledger.order == [ask.name for ask in asks]


@pytest.mark.parametrize("policy", ["prefix-group", "lpm"])
def test_a_skipped_request_does_not_hold_the_turn(policy: str) -> None:
    """A context of which nobody is ready takes no turn from the others."""
    asks = grouped(Mix(contexts=3, per_context=6))
    asks = [replace(a, grammar_s=1.0) if a.context == "c0" else a for a in asks]
    ledger = checked(EngineShape(usable_blocks=20), policy=policy).run(asks)
    assert contexts(ledger.order) == ["c1", "c2", "c0"]
    assert ledger.computed_tokens == lower_bound([ask.prompt for ask in asks], 128)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("max_loras", [1, 2])
@pytest.mark.parametrize("is_async", [False, True])
def test_requests_of_a_lora_without_a_slot_are_passed_over(
    policy: str, max_loras: int, is_async: bool
) -> None:
    asks = [replace(a, lora=n % 4) for n, a in enumerate(shuffled(Mix()))]
    shape = EngineShape(usable_blocks=60, max_loras=max_loras, async_scheduling=is_async)
    engine = checked(shape, policy=policy)
    engine.run(asks)
    all_done(engine, names(asks))
    lora = {ask.name: ask.lora for ask in asks}
    for step in engine.ledger.steps:
        assert len({lora[name] for name, _ in step.scheduled} - {0}) <= max_loras


@pytest.mark.parametrize("policy", ["prefix-group", "lpm"])
def test_priorities_go_before_contexts(policy: str) -> None:
    """vLLM's priority policy: a more urgent request is never admitted after a less urgent one."""
    asks = [replace(a, priority=n % 2) for n, a in enumerate(shuffled(Mix()))]
    shape = EngineShape(usable_blocks=20, vllm_policy="priority", max_num_seqs=4)
    engine = checked(shape, policy=policy)
    ledger = engine.run(asks)
    all_done(engine, names(asks))
    priority = {ask.name: ask.priority for ask in asks}
    assert [priority[name] for name in ledger.order] == [0] * 18 + [1] * 18
    assert len(contexts(ledger.order[:18])) <= 6
    assert len(contexts(ledger.order[18:])) <= 6
