"""vLLM's scheduler with our waiting queue; everything else is vLLM's own."""

from typing import Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.request_queue import SchedulingPolicy
from vllm.v1.core.sched.scheduler import Scheduler

from scheduler_plugin.engine_view import Nobody
from scheduler_plugin.queue import make_queue
from scheduler_plugin.settings import OrderSettings


class _ContextTurns:
    """Put before one of vLLM's scheduler classes."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        scheduler: Any = self
        chosen = scheduler.vllm_config.additional_config.get("context_scheduler", {})
        settings = OrderSettings(**chosen)
        by_priority = scheduler.policy == SchedulingPolicy.PRIORITY
        if by_priority and settings.policy == "fcfs":
            return
        scheduler.waiting = make_queue(scheduler, settings, Nobody(), by_priority)


class SyncContextScheduler(_ContextTurns, Scheduler):
    """For engines without asynchronous scheduling."""


class AsyncContextScheduler(_ContextTurns, AsyncScheduler):
    """For engines with asynchronous scheduling, vLLM's default where it can."""


def make_scheduler(*args: Any, **kwargs: Any) -> Scheduler:
    """What vLLM calls as its scheduler class: the class it would use itself, with our queue."""
    config = kwargs["vllm_config"] if "vllm_config" in kwargs else args[0]
    is_async = config.scheduler_config.async_scheduling
    return (AsyncContextScheduler if is_async else SyncContextScheduler)(*args, **kwargs)
