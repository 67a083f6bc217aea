"""The plugin switched on by an environment variable, through vLLM's entry point of plugins."""

import logging
import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm")

from engine_shape import EngineShape, build_scheduler
from vllm.config import SchedulerConfig
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler

from scheduler_plugin import ContextScheduler
from scheduler_plugin.safe_queue import SafeQueue
from scheduler_plugin.scheduler import stock_class, switch_on
from scheduler_plugin.settings import SettingsError

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def undone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SchedulerConfig, "get_scheduler_cls", SchedulerConfig.get_scheduler_cls)


def config_of(is_async: bool) -> Any:
    return build_scheduler(EngineShape(async_scheduling=is_async)).vllm_config


@pytest.mark.parametrize("is_async", [False, True])
def test_the_variable_puts_our_queue_into_the_class_of_vllm(
    is_async: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_of(is_async)
    stock = AsyncScheduler if is_async else Scheduler
    monkeypatch.setenv("CONTEXT_SCHEDULER", "on")
    for _ in range(2):  # vLLM calls it in each of its processes, and may twice in one
        switch_on()
    assert config.scheduler_config.get_scheduler_cls() is ContextScheduler
    assert stock_class(config) is stock
    shape = EngineShape(async_scheduling=is_async)
    scheduler = build_scheduler(shape)
    made = config.scheduler_config.get_scheduler_cls()(
        scheduler.vllm_config,
        scheduler.kv_cache_config,
        scheduler.structured_output_manager,
        scheduler.block_size,
        scheduler.hash_block_size,
    )
    assert isinstance(made, stock)
    assert isinstance(made.waiting, SafeQueue)


def test_a_class_that_is_named_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    config = config_of(False).scheduler_config
    config.scheduler_cls = "vllm.v1.core.sched.scheduler.Scheduler"
    monkeypatch.setenv("CONTEXT_SCHEDULER", "1")
    switch_on()
    assert config.get_scheduler_cls() is Scheduler


@pytest.mark.parametrize("value", [None, "", "0", "OFF", "false"])
def test_without_it_nothing_changes(value: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    if value is not None:
        monkeypatch.setenv("CONTEXT_SCHEDULER", value)
    before = SchedulerConfig.get_scheduler_cls
    switch_on()
    assert SchedulerConfig.get_scheduler_cls is before


def test_another_value_stops_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONTEXT_SCHEDULER", "maybe")
    with pytest.raises(SettingsError, match="CONTEXT_SCHEDULER is 'maybe', but must be on or off"):
        switch_on()


def test_a_vllm_that_chooses_its_scheduler_elsewhere_starts_in_its_own_order(
    monkeypatch: pytest.MonkeyPatch, log: Any
) -> None:
    monkeypatch.delattr(SchedulerConfig, "get_scheduler_cls")
    monkeypatch.setenv("CONTEXT_SCHEDULER", "on")
    switch_on()
    (warning,) = log.said(logging.WARNING)
    assert "is off, the order is vLLM's own" in warning
    assert "get_scheduler_cls" in warning
    monkeypatch.setenv("CONTEXT_SCHEDULER_STRICT", "true")
    with pytest.raises(RuntimeError, match=r"\(strict\) refuses to start: .*get_scheduler_cls"):
        switch_on()


@pytest.mark.parametrize("folder", ["", "scheduler_plugin"])
def test_both_distributions_name_it_to_vllm(folder: str) -> None:
    project = tomllib.loads((ROOT / folder / "pyproject.toml").read_text())["project"]
    (entry,) = project["entry-points"]["vllm.general_plugins"].items()
    assert EntryPoint(*entry, "vllm.general_plugins").load() is switch_on
