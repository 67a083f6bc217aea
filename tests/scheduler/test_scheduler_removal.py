"""Aborts, preemption, and resets of the cache, in the middle of things."""

from dataclasses import replace

import pytest
from ask import Ask, make_request
from computed_bound import lower_bound
from engine_shape import EngineShape, settings
from queue_invariants import all_done, nothing_lost
from virtual_engine import VirtualEngine
from virtual_load import Mix, grouped, shuffled, tokens
from vllm.v1.request import RequestStatus

POLICIES = ("fcfs", "prefix-group", "lpm", "reuse")
CLASSES = (False, True)


def engine_of(policy: str, is_async: bool = False, **shape: int) -> VirtualEngine:
    plugin = settings(policy=policy)
    return VirtualEngine(EngineShape(async_scheduling=is_async, plugin=plugin, **shape))


def waiting(engine: VirtualEngine) -> list[str]:
    return [request.request_id for request in engine.scheduler.waiting]


@pytest.mark.parametrize("is_async", CLASSES)
@pytest.mark.parametrize("policy", POLICIES)
def test_aborts_of_waiting_running_and_unknown_requests(policy: str, is_async: bool) -> None:
    engine = engine_of(policy, is_async, usable_blocks=20, max_num_seqs=4)
    asks = shuffled(Mix())
    for ask in asks:
        engine.submit(ask)
    engine.step()
    engine.step()
    queued, running = waiting(engine), [r.request_id for r in engine.scheduler.running]
    gone = [queued[0], queued[5], queued[-1], running[0]]
    engine.abort(*gone, "nobody")
    nothing_lost(engine)
    engine.abort(*gone)
    engine.run()
    all_done(engine, {ask.name for ask in asks} - set(gone))


@pytest.mark.parametrize("policy", POLICIES)
def test_abort_of_all_that_wait_leaves_an_empty_queue_that_serves_on(policy: str) -> None:
    engine = engine_of(policy, usable_blocks=20, max_num_seqs=2)
    asks = shuffled(Mix())
    for ask in asks:
        engine.submit(ask)
    engine.step()
    queued = waiting(engine)
    engine.abort(*queued)
    assert not engine.scheduler.waiting
    again = [replace(ask, name=f"again-{ask.name}") for ask in asks if ask.name in queued]
    engine.run(again)
    kept = {ask.name for ask in asks} - set(queued)
    all_done(engine, kept | {ask.name for ask in again})


@pytest.mark.parametrize("policy", POLICIES)
def test_removing_requests_that_are_not_here_changes_nothing(policy: str) -> None:
    engine = engine_of(policy)
    asks = shuffled(Mix(contexts=2, per_context=2))
    for ask in asks[:3]:
        engine.submit(ask)
    stranger = make_request(asks[3], 128)
    engine.scheduler.waiting.remove_requests([stranger])
    engine.scheduler.waiting.remove_requests({stranger})
    nothing_lost(engine)
    with pytest.raises(ValueError, match=r"not waiting|not in"):
        engine.scheduler.waiting.remove_request(stranger)
    engine.run()
    all_done(engine, {ask.name for ask in asks[:3]})


@pytest.mark.parametrize("policy", POLICIES)
def test_an_empty_queue_offers_nobody(policy: str) -> None:
    queue = engine_of(policy).scheduler.waiting
    with pytest.raises(IndexError):
        queue.peek_request()
    with pytest.raises(IndexError):
        queue.pop_request()


@pytest.mark.parametrize("policy", POLICIES)
def test_pop_takes_what_peek_showed_although_the_cache_changed_between(policy: str) -> None:
    """Allocation for the offered request can evict what made it, or another, the best choice."""
    engine = engine_of(policy, usable_blocks=30, max_num_seqs=8)
    first, later = grouped(Mix(contexts=3, per_context=4))[:1], shuffled(Mix(contexts=3, seed=0))
    engine.run(first)
    for ask in [ask for ask in later if ask.name != first[0].name]:
        engine.submit(ask)
    queue = engine.scheduler.waiting
    before = queue.peek_request()
    assert engine.scheduler.reset_prefix_cache()
    assert queue.pop_request() is before
    queue.prepend_requests([before])
    nothing_lost(engine)


def long_replies(contexts: int = 3, per_context: int = 4) -> list[Ask]:
    """Requests whose replies outgrow a cache of 30 blocks of 16 tokens: vLLM must preempt."""
    return [
        Ask(
            f"c{c}-{n}",
            f"c{c}",
            tokens(64, "long", c) + tokens(10, "end", c, n),
            output_tokens=150,
        )
        for n in range(per_context)
        for c in range(contexts)
    ]


@pytest.mark.parametrize("is_async", CLASSES)
@pytest.mark.parametrize("policy", POLICIES)
def test_preempted_requests_come_back_before_all_others(policy: str, is_async: bool) -> None:
    engine = engine_of(policy, is_async, usable_blocks=30, block_size=16)
    asks = long_replies()
    ledger = engine.run(asks)
    all_done(engine, {ask.name for ask in asks})
    assert set(ledger.output_tokens.values()) == {150}
    preempted: list[str] = []
    for number, step in enumerate(ledger.steps):
        # vLLM tells of a preemption in the step in which it happens.
        preempted += sorted(step.preempted)
        for admission in (a for a in ledger.admissions if a.step == number):
            assert admission.again or not preempted, f"{admission.name} passed {preempted}"
            if admission.again:
                preempted.remove(admission.name)
    assert any(admission.again for admission in ledger.admissions)


@pytest.mark.parametrize("policy", POLICIES)
def test_several_preempted_come_back_oldest_first_as_in_stock(policy: str) -> None:
    asks = long_replies()
    stock = VirtualEngine(EngineShape(usable_blocks=30, block_size=16))
    engine = engine_of(policy, usable_blocks=30, block_size=16)
    for one in (stock, engine):
        for ask in asks:
            one.submit(ask)
        for _ in range(3):
            one.step()
        running = [r.request_id for r in one.scheduler.running]
        assert len(running) > 2
        assert one.scheduler.reset_prefix_cache(reset_running_requests=True)
        assert waiting(one)[: len(running)] == running
        one.run()
        all_done(one, {ask.name for ask in asks})


@pytest.mark.parametrize("is_async", CLASSES)
@pytest.mark.parametrize("policy", POLICIES)
def test_reset_with_running_requests_loses_nobody(policy: str, is_async: bool) -> None:
    engine = engine_of(policy, is_async, usable_blocks=40, max_num_seqs=6)
    asks = shuffled(Mix())
    for ask in asks:
        engine.submit(ask)
    for _ in range(4):
        engine.step()
        engine.scheduler.reset_prefix_cache(reset_running_requests=True)
        nothing_lost(engine)
    ledger = engine.run()
    all_done(engine, {ask.name for ask in asks})
    assert set(ledger.output_tokens.values()) == {8}


def test_after_a_reset_contexts_are_still_served_together() -> None:
    engine = engine_of("lpm", usable_blocks=20)
    asks = shuffled(Mix(contexts=4, per_context=4))
    engine.run(asks[:1])
    assert engine.scheduler.reset_prefix_cache()
    ledger = engine.run([replace(ask, name=f"late-{ask.name}") for ask in asks])
    late = lower_bound([ask.prompt for ask in asks], 128)
    assert ledger.computed_tokens == len(asks[0].prompt) + late


@pytest.mark.parametrize("policy", POLICIES)
def test_a_preempted_request_can_be_aborted(policy: str) -> None:
    engine = engine_of(policy, usable_blocks=30, block_size=16)
    asks = long_replies()
    for ask in asks:
        engine.submit(ask)
    gone: set[str] = set()
    while engine.busy:
        engine.step()
        preempted = [
            name
            for name, request in engine.scheduler.requests.items()
            if request.status is RequestStatus.PREEMPTED
        ]
        if preempted and len(gone) < 2:
            engine.abort(preempted[0])
            gone.add(preempted[0])
        nothing_lost(engine)
    assert len(gone) == 2
    all_done(engine, {ask.name for ask in asks} - gone)
