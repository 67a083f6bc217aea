"""The guard on vLLM's real scheduler: it fits, and each thing that moves is found at start."""

import logging
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm")

from engine_shape import EngineShape, build_scheduler, settings
from vllm.v1.core import block_pool
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.kv_cache_utils import FreeKVCacheBlockQueue
from vllm.v1.core.sched import request_queue
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.request_queue import FCFSRequestQueue, RequestQueue
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output.request import StructuredOutputRequest

from scheduler_plugin import ContextScheduler, guard
from scheduler_plugin.safe_queue import SafeQueue
from scheduler_plugin.scheduler import stock_class
from scheduler_plugin.settings import SettingsError

STOCK = EngineShape()
PLUGIN = EngineShape(plugin=settings(policy="lpm"))
STRICT = EngineShape(plugin=settings(policy="lpm", strict=True))


@pytest.mark.parametrize("vllm_policy", ["fcfs", "priority"])
@pytest.mark.parametrize("is_async", [False, True])
def test_this_vllm_fits(vllm_policy: str, is_async: bool) -> None:
    shape = EngineShape(async_scheduling=is_async, vllm_policy=vllm_policy)
    scheduler = build_scheduler(shape)
    assert guard.misfit_of(scheduler) is None
    assert not scheduler.waiting
    assert not scheduler.requests


@pytest.mark.parametrize("is_async", [False, True])
def test_the_class_is_the_one_vllm_would_use(is_async: bool) -> None:
    shape = EngineShape(async_scheduling=is_async, plugin=settings(policy="lpm"))
    scheduler = build_scheduler(shape)
    assert isinstance(scheduler, AsyncScheduler) is is_async
    assert isinstance(scheduler, Scheduler)
    assert type(scheduler).schedule is (AsyncScheduler if is_async else Scheduler).schedule
    assert isinstance(scheduler.waiting, SafeQueue)
    assert isinstance(scheduler.kv_holding_waiting, FCFSRequestQueue)


def test_arguments_may_come_by_position() -> None:
    stock = build_scheduler(PLUGIN)
    again = ContextScheduler(
        stock.vllm_config,
        stock.kv_cache_config,
        stock.structured_output_manager,
        stock.block_size,
        stock.hash_block_size,
    )
    assert isinstance(again.waiting, SafeQueue)


def test_a_diffusion_model_keeps_its_own_scheduler() -> None:
    from vllm.v1.core.sched.diffusion_scheduler import DiffusionAsyncScheduler, DiffusionScheduler

    for is_async, expected in ((True, DiffusionAsyncScheduler), (False, DiffusionScheduler)):
        config = SimpleNamespace(
            scheduler_config=SimpleNamespace(async_scheduling=is_async), diffusion_config=object()
        )
        assert stock_class(config) is expected


@pytest.fixture
def tested(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever vLLM this is: its version is no reason for a warning."""
    monkeypatch.setattr(guard, "TESTED", ((0, 0), (1000, 0)))


@pytest.mark.usefixtures("tested")
def test_a_setting_that_the_policy_does_not_look_at_is_told(log: Any) -> None:
    build_scheduler(EngineShape(plugin=settings(policy="reuse", key="label", max_wait_s=9)))
    (line,) = log.said(logging.WARNING)
    assert line.endswith("policy reuse does not look at key")


@pytest.mark.usefixtures("tested")
def test_one_line_says_what_is_on(log: Any) -> None:
    build_scheduler(EngineShape(plugin=settings(policy="prefix-group", quantum=7)))
    (line,) = log.said(logging.INFO)
    assert "is on, within vLLM's Scheduler: policy prefix-group, key auto, quantum 7" in line
    assert log.said(logging.WARNING) == []


def test_a_wrong_setting_never_starts() -> None:
    with pytest.raises(SettingsError, match="quantum is 0"):
        build_scheduler(EngineShape(plugin=settings(quantum=0, strict=False)))


def test_first_come_with_priorities_is_vllms_own_queue(log: Any) -> None:
    shape = EngineShape(vllm_policy="priority", plugin=settings(policy="fcfs"))
    assert not isinstance(build_scheduler(shape).waiting, SafeQueue)
    assert "leaves the order to vLLM's own priority queue" in log.said(logging.INFO)[0]


def new_method(monkeypatch: pytest.MonkeyPatch) -> None:
    more = RequestQueue.__abstractmethods__ | {"requeue_request"}
    monkeypatch.setattr(RequestQueue, "__abstractmethods__", more)


def other_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RequestQueue, "add_request", lambda self, request, front: None)


def moved_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(request_queue, "PriorityRequestQueue")


def other_lookup(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_pool.BlockPool, "get_cached_block", lambda self, block_hash: None)


def no_usage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(KVCacheManager, "usage")


def new_state(monkeypatch: pytest.MonkeyPatch) -> None:
    class States:
        """An enumeration cannot be extended, so this stands in for one with a state more."""

        WAITING = RequestStatus.WAITING

        @staticmethod
        def is_finished(state: Any) -> bool:
            return bool(state.name.startswith("FINISHED"))

        def __iter__(self) -> Any:
            return iter([*RequestStatus, SimpleNamespace(name="WAITING_FOR_GODOT")])

    monkeypatch.setattr("vllm.v1.request.RequestStatus", States())


def without(kind: type, name: str) -> Callable[[pytest.MonkeyPatch], None]:
    """A vLLM whose instances of `kind` have no attribute of that name."""

    def change(monkeypatch: pytest.MonkeyPatch) -> None:
        build = kind.__init__  # type: ignore[misc]

        def bare(self: Any, *args: Any, **kwargs: Any) -> None:
            build(self, *args, **kwargs)
            delattr(self, name)

        monkeypatch.setattr(kind, "__init__", bare)

    return change


def no_free_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(FreeKVCacheBlockQueue, "iter_blocks_after")


def no_count_of_free_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(block_pool.BlockPool, "get_num_free_blocks")


def no_grammar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(StructuredOutputRequest, "grammar")


def other_count_of_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Request, "num_tokens", property(lambda _: 0))


CHANGES: list[tuple[Callable[[pytest.MonkeyPatch], None], str]] = [
    (new_method, "new are ['requeue_request']"),
    (other_parameters, "RequestQueue.add_request takes"),
    (moved_queue, "PriorityRequestQueue"),
    (other_lookup, "get_cached_block takes"),
    (no_usage, "usage"),
    (new_state, "new are ['WAITING_FOR_GODOT']"),
    (without(Request, "session_id"), "session_id"),
    (without(Request, "structured_output_request"), "structured_output_request"),
    (no_free_blocks, "iter_blocks_after"),
    (no_count_of_free_blocks, "get_num_free_blocks"),
    (without(Scheduler, "_inflight_prefills"), "_inflight_prefills"),
    (without(Scheduler, "block_size"), "block_size"),
    (other_count_of_tokens, "with one token counts [0, 1]"),
    (without(Scheduler, "cache_config"), "cache_config"),
    (no_grammar, "grammar"),
]


@pytest.mark.parametrize(("change", "expected"), CHANGES)
def test_a_vllm_that_changed_is_served_in_its_own_order(
    change: Callable[[pytest.MonkeyPatch], None],
    expected: str,
    monkeypatch: pytest.MonkeyPatch,
    log: Any,
) -> None:
    build_scheduler(STOCK)
    change(monkeypatch)
    assert type(build_scheduler(PLUGIN).waiting) is FCFSRequestQueue
    (warning,) = log.said(logging.WARNING)
    assert "is off, the order is vLLM's own" in warning
    assert expected in warning
    assert log.said(logging.INFO) == []


@pytest.mark.parametrize(("change", "expected"), CHANGES)
def test_strict_refuses_in_one_sentence(
    change: Callable[[pytest.MonkeyPatch], None], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    change(monkeypatch)
    with pytest.raises(RuntimeError, match=r"\(strict\) refuses to start") as refusal:
        build_scheduler(STRICT)
    assert expected in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("shape", [PLUGIN, STRICT])
def test_a_newer_vllm_that_fits_is_used_with_a_warning(
    shape: EngineShape, monkeypatch: pytest.MonkeyPatch, log: Any
) -> None:
    monkeypatch.setattr(guard, "TESTED", ((0, 30), (0, 31)))
    assert isinstance(build_scheduler(shape).waiting, SafeQueue)
    (warning,) = log.said(logging.WARNING)
    assert "is not among the tested versions, >=0.30,<0.31, but has all" in warning


def test_a_queue_of_somebody_else_is_left_alone() -> None:
    class Theirs(FCFSRequestQueue):
        pass

    scheduler = build_scheduler(STOCK)
    scheduler.waiting = Theirs()
    assert "another waiting queue is in place, Theirs" in str(guard.misfit_of(scheduler))


def test_it_warns_where_order_gains_nothing() -> None:
    scheduler = build_scheduler(STOCK)
    assert guard.no_gain(scheduler, "lpm") is None
    scheduler.kv_cache_manager.coordinator.single_type_managers = ()
    assert "policy lpm cannot see" in str(guard.no_gain(scheduler, "lpm"))
    assert "policy reuse cannot see" in str(guard.no_gain(scheduler, "reuse"))
    assert guard.no_gain(scheduler, "prefix-group") is None
    scheduler.cache_config = SimpleNamespace(enable_prefix_caching=False)
    assert "prefix caching is off" in str(guard.no_gain(scheduler, "prefix-group"))
