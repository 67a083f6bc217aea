"""What the metrics count while vLLM's real scheduler serves, against what it did."""

from dataclasses import replace

import pytest

pytest.importorskip("vllm")

from computed_bound import lower_bound
from engine_shape import EngineShape, settings
from queue_invariants import all_done
from virtual_engine import VirtualEngine
from virtual_load import Mix, shuffled

from scheduler_plugin.tally import AdmissionTally


def watched(
    monkeypatch: pytest.MonkeyPatch, shape: EngineShape
) -> tuple[VirtualEngine, AdmissionTally]:
    tally = AdmissionTally()
    monkeypatch.setattr("scheduler_plugin.metrics.make_watcher", lambda *_: tally)
    return VirtualEngine(shape), tally


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("policy", ["fcfs", "prefix-group", "lpm"])
def test_cold_tokens_are_those_computed(
    policy: str, is_async: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugin = settings(policy=policy)
    shape = EngineShape(usable_blocks=40, async_scheduling=is_async, plugin=plugin)
    engine, tally = watched(monkeypatch, shape)
    asks = shuffled(Mix())
    ledger = engine.run(asks)
    all_done(engine, {ask.name for ask in asks})
    assert tally.cold_tokens == ledger.reported_tokens
    assert tally.resident_tokens + tally.cold_tokens == sum(len(ask.prompt) for ask in asks)
    assert sum(tally.wait_s.counts) == len(asks)
    assert tally.unlabelled == 0


def test_each_request_is_in_one_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    shape = EngineShape(usable_blocks=40, plugin=settings(policy="prefix-group", quantum=4))
    engine, tally = watched(monkeypatch, shape)
    engine.run(shuffled(Mix()))
    assert sum(tally.turns.values()) == 12, "six contexts of six, at most four in a turn"
    ended = 11
    assert sum(tally.turn_requests.counts) == ended
    assert tally.turn_requests.total in (36 - 4, 36 - 2)


def test_a_pending_lookup_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    plugin = settings(policy="lpm")
    shape = EngineShape(usable_blocks=40, pending_lookups=2, plugin=plugin)
    engine, tally = watched(monkeypatch, shape)
    asks = shuffled(Mix())
    engine.run(asks)
    assert sum(tally.wait_s.counts) == len(asks)
    assert tally.resident_tokens + tally.cold_tokens == sum(len(ask.prompt) for ask in asks)


def test_a_request_counts_once_though_its_load_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has held blocks, lost them, and waits in the queue again for another lookup."""
    shape = EngineShape(
        usable_blocks=40,
        pending_lookups=1,
        external_tokens=1024,
        load_in_background=True,
        loads_fail=True,
        plugin=settings(policy="lpm"),
    )
    engine, tally = watched(monkeypatch, shape)
    asks = shuffled(Mix())
    ledger = engine.run(asks)
    all_done(engine, {ask.name for ask in asks})
    assert ledger.computed_tokens >= lower_bound([ask.prompt for ask in asks], 128)
    assert sum(tally.wait_s.counts) == len(asks)
    assert tally.resident_tokens + tally.cold_tokens == sum(len(ask.prompt) for ask in asks)


def test_a_preempted_request_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, tally = watched(monkeypatch, EngineShape(plugin=settings(policy="lpm")))
    asks = shuffled(Mix())
    for ask in asks:
        engine.submit(ask)
    engine.step()
    assert engine.scheduler.reset_prefix_cache(reset_running_requests=True)
    engine.run()
    assert sum(tally.wait_s.counts) == len(asks)
    assert tally.resident_tokens + tally.cold_tokens == sum(len(ask.prompt) for ask in asks)


def test_requests_without_label_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, tally = watched(monkeypatch, EngineShape(plugin=settings(policy="lpm")))
    asks = shuffled(Mix())
    engine.run([replace(ask, labelled=place % 3 > 0) for place, ask in enumerate(asks)])
    assert tally.unlabelled == 12
