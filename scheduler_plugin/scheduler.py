"""vLLM's scheduler with our waiting queue; everything else is vLLM's own."""

import copy
import inspect
import logging
import os
from dataclasses import asdict
from functools import cache, wraps
from importlib import import_module
from typing import Any

from scheduler_plugin.engine_view import Nobody, Watcher
from scheduler_plugin.guard import misfit_of, no_gain, untested_version
from scheduler_plugin.settings import OrderSettings, is_on

# No vLLM import here: what has moved in a new vLLM must end in its own order, not in a crash.

LOGGER = logging.getLogger("vllm.context_scheduler")
"""Under vLLM's name, as vLLM configures the output of no other logger."""


class ContextTurns:
    """Put before one of vLLM's scheduler classes, it replaces the waiting queue.

    Raises SettingsError for settings that cannot be, and RuntimeError where settings are strict
    and this vLLM is not one that the plugin knows.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        config = _vllm_config(args, kwargs)
        settings = OrderSettings.read(config.additional_config, os.environ)
        super().__init__(*args, **kwargs)
        _install(self, settings)


def make_scheduler(*args: Any, **kwargs: Any) -> Any:
    """What vLLM calls as its scheduler class: the class it would use itself, with our queue."""
    return _context_class(stock_class(_vllm_config(args, kwargs)))(*args, **kwargs)


def switch_on() -> None:
    """What vLLM calls at its start (`vllm.general_plugins`): with CONTEXT_SCHEDULER=on the order is
    ours where no scheduler class is named.

    Raises SettingsError for another value, and RuntimeError where settings are strict and this vLLM
    chooses its scheduler in another way.
    """
    if not is_on(os.environ):
        return
    try:
        from vllm.config import SchedulerConfig

        original = inspect.unwrap(SchedulerConfig.get_scheduler_cls)
    except (ImportError, AttributeError) as error:
        misfit = f"this vLLM chooses its scheduler in another way ({error})"
        _stay_off(OrderSettings.read({}, os.environ), misfit)
        return

    @wraps(original)
    def ours(config: Any) -> Any:
        return make_scheduler if config.scheduler_cls is None else original(config)

    SchedulerConfig.get_scheduler_cls = ours


def stock_class(config: Any) -> Any:
    """The scheduler class that vLLM uses for this configuration when none is named."""
    scheduler_config = copy.copy(config.scheduler_config)
    scheduler_config.scheduler_cls = None
    if getattr(config, "diffusion_config", None) is None:
        return inspect.unwrap(type(scheduler_config).get_scheduler_cls)(scheduler_config)
    kind = "DiffusionAsync" if scheduler_config.async_scheduling else "Diffusion"
    return getattr(import_module("vllm.v1.core.sched.diffusion_scheduler"), f"{kind}Scheduler")


@cache
def _context_class(stock: type) -> type:
    return type(f"Context{stock.__name__}", (ContextTurns, stock), {"__module__": __name__})


def _vllm_config(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return kwargs["vllm_config"] if "vllm_config" in kwargs else args[0]


def _install(scheduler: Any, settings: OrderSettings) -> None:
    misfit = misfit_of(scheduler)
    if misfit is None:
        _replace_queue(scheduler, settings)
        return
    _stay_off(settings, misfit)
    _watcher(scheduler, is_active=False)


def _stay_off(settings: OrderSettings, misfit: str) -> None:
    if settings.strict:
        raise RuntimeError(
            f"the context scheduler (strict) refuses to start: {misfit}; without 'strict' this"
            " server would run in vLLM's own order"
        )
    LOGGER.warning("the context scheduler is off, the order is vLLM's own: %s", misfit)


def _replace_queue(scheduler: Any, settings: OrderSettings) -> None:
    from scheduler_plugin.queue import make_queue
    from scheduler_plugin.safe_queue import SafeQueue

    by_priority = scheduler.policy.value == "priority"
    if by_priority and settings.policy == "fcfs":
        _watcher(scheduler, is_active=False)
        LOGGER.info(
            "the context scheduler leaves the order to vLLM's own priority queue, which is first"
            " come, first served within a priority (policy fcfs)"
        )
        return
    watcher, stock = _watcher(scheduler, is_active=True), scheduler.waiting

    def failed() -> None:
        scheduler.waiting = stock
        watcher.failed()

    ordered = make_queue(scheduler, settings, watcher, by_priority)
    scheduler.waiting = SafeQueue(ordered, stock, failed)
    _say_what_is_on(scheduler, settings)


def _say_what_is_on(scheduler: Any, settings: OrderSettings) -> None:
    stock = type(scheduler).__bases__[1].__name__
    shown = ", ".join(f"{name} {_shown(value)}" for name, value in asdict(settings).items())
    LOGGER.info("the context scheduler is on, within vLLM's %s: %s", stock, shown)
    gain = no_gain(scheduler, settings.policy)
    for warning in (untested_version(), gain, settings.unasked()):
        if warning is not None:
            LOGGER.warning("the context scheduler: %s", warning)


def _shown(value: object) -> str:
    return "none" if value is None else str(value).lower()


def _watcher(scheduler: Any, is_active: bool) -> Watcher[Any]:
    """The metrics, or nobody where they cannot be: serving does not depend on them."""
    try:
        from scheduler_plugin.metrics import make_watcher

        return make_watcher(scheduler, is_active)
    except Exception:
        LOGGER.exception("the context scheduler's metrics cannot be set up and are off")
        return Nobody()
