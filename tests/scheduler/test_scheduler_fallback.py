"""A bug in the order by context costs the order, and nothing else."""

import logging
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("vllm")

from chaos import Chaos
from engine_shape import EngineShape, settings
from queue_invariants import all_done
from virtual_engine import VirtualEngine
from virtual_load import Mix, shuffled
from vllm.v1.core.sched.request_queue import FCFSRequestQueue, PriorityRequestQueue

from scheduler_plugin.choice import Choice
from scheduler_plugin.engine_view import Nobody
from scheduler_plugin.group_line import GroupLine
from scheduler_plugin.grouping import Grouping
from scheduler_plugin.levels import PriorityLevels
from scheduler_plugin.order import ContextOrder
from scheduler_plugin.overtakes import Overtakes
from scheduler_plugin.prefix_tree import PrefixTree
from scheduler_plugin.queue import SchedulerView
from scheduler_plugin.reuse import ReuseChoice
from scheduler_plugin.safe_queue import SafeQueue
from scheduler_plugin.served_tree import ServedTree

CALLS = ("add", "add_first", "give_back", "remove", "peek", "pop", "__len__", "__iter__")
PLACES = [
    *((kind, name) for kind in (ContextOrder, PriorityLevels) for name in CALLS),
    (Grouping, "group_of"),
    (Grouping, "drop_if_empty"),
    (Choice, "next_group"),
    (Choice, "admitted"),
    (GroupLine, "file"),
    (Overtakes, "forget_before"),
    (PrefixTree, "nearest"),
    (PrefixTree, "insert"),
    (PrefixTree, "remove"),
    (SchedulerView, "resident_blocks"),
    (SchedulerView, "is_admitted"),
]
OF_REUSE = [
    *((ReuseChoice, name) for name in ("next", "waits", "leaves", "admitted", "step_ended")),
    *((ServedTree, name) for name in ("serve", "waits", "leaves", "where", "_grow", "_descend")),
]
"""What only policy `reuse` has."""


class Failures(Nobody):
    """Counts how often the queue was said to have failed."""

    def __init__(self) -> None:
        self.count = 0

    def failed(self) -> None:
        self.count += 1


@pytest.fixture
def failures(monkeypatch: pytest.MonkeyPatch) -> Failures:
    watcher = Failures()
    monkeypatch.setattr("scheduler_plugin.metrics.make_watcher", lambda *_: watcher)
    return watcher


def breaking(call: Callable[..., Any], at: int, is_done: bool) -> Callable[..., Any]:
    """`call`, of which every one from number `at` on fails, with its work done or not."""
    calls = 0

    def broken(*args: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls < at:
            return call(*args)
        if is_done:
            call(*args)
        raise KeyError("a bug")

    return broken


@pytest.mark.parametrize(
    ("kind", "name"), [*PLACES, *OF_REUSE], ids=lambda of: getattr(of, "__name__", of)
)
def test_a_bug_anywhere_in_the_order_loses_nobody(
    kind: type, name: str, monkeypatch: pytest.MonkeyPatch, failures: Failures, log: Any
) -> None:
    """It strikes at a random call of a random run, of which every step is checked."""
    original, dice = getattr(kind, name), random.Random(name)
    policy = "priority" if kind is PriorityLevels else "fcfs"
    own = "reuse" if (kind, name) in OF_REUSE else "lpm"
    for seed in range(20):
        if failures.count == 3:
            break
        plugin = settings(policy=own, key=dice.choice(["auto", "prefix"]), quantum=2)
        chaos = Chaos(seed, 25, usable_blocks=24, vllm_policy=policy, plugin=plugin)
        scheduler = chaos.engine.scheduler
        monkeypatch.setattr(kind, name, breaking(original, dice.randint(1, 9), seed % 2 > 0))
        before = failures.count
        chaos.run()
        monkeypatch.setattr(kind, name, original)
        assert isinstance(scheduler.waiting, SafeQueue) is (failures.count == before)
    errors = log.records(logging.ERROR)
    assert len(errors) == failures.count == 3
    assert all("failed and is off" in e.getMessage() and "a bug" in str(e.exc_info) for e in errors)


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
def test_the_rest_is_served_in_vllms_own_order(
    policy: str, monkeypatch: pytest.MonkeyPatch, failures: Failures
) -> None:
    shape = EngineShape(vllm_policy=policy, max_num_seqs=4, plugin=settings(policy="lpm"))
    engine = VirtualEngine(shape)
    asks = [replace(ask, arrival_s=n / 1000) for n, ask in enumerate(shuffled(Mix()))]
    for ask in asks:
        engine.submit(ask)
    engine.step()
    first = list(engine.ledger.order)
    monkeypatch.setattr(Choice, "next_group", breaking(Choice.next_group, 1, False))
    monkeypatch.setattr(ContextOrder, "pop", breaking(ContextOrder.pop, 1, False))
    ledger = engine.run()
    all_done(engine, {ask.name for ask in asks})
    kind = FCFSRequestQueue if policy == "fcfs" else PriorityRequestQueue
    assert type(engine.scheduler.waiting) is kind
    left = [ask.name for ask in asks if ask.name not in first]
    offered = ledger.order[len(first)]
    assert ledger.order[len(first) + 1 :] == [name for name in left if name != offered]
    assert failures.count == 1


def test_an_order_that_forgets_somebody_is_found_out(
    monkeypatch: pytest.MonkeyPatch, failures: Failures, log: Any
) -> None:
    engine = VirtualEngine(EngineShape(max_num_seqs=2, plugin=settings(policy="lpm", strict=True)))
    asks = shuffled(Mix())
    for ask in asks:
        engine.submit(ask)
    monkeypatch.setattr(
        ContextOrder, "add_first", lambda order, _: order.remove([next(iter(order))])
    )
    engine.step()
    assert engine.scheduler.reset_prefix_cache(reset_running_requests=True)
    engine.run()
    all_done(engine, {ask.name for ask in asks})
    assert failures.count == len(log.records(logging.ERROR)) == 1
