"""Serve waiting requests of vLLM context by context: `--scheduler-cls` for an existing server.

    vllm serve MODEL --scheduler-cls scheduler_plugin.ContextScheduler

The order itself (`scheduler_plugin.order`) needs no vLLM.
"""

from typing import Any

__all__ = ["ContextScheduler"]


def __getattr__(name: str) -> Any:
    if name == "ContextScheduler":
        from scheduler_plugin.scheduler import make_scheduler

        return make_scheduler
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
