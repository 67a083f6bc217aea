"""A process of a swarm: its garbage collector, and that it does not outlive its parent.

Imports nothing of Locust, as it is needed before Locust is imported.
"""

import contextlib
import ctypes
import gc
import os
import signal
import sys
from collections.abc import Iterator
from typing import Any

import psutil

THRESHOLDS = (10_000, 20, 20)
"""Requests make many objects and hardly any cycles: look for them ten times less often."""
PR_SET_PDEATHSIG = 1


@contextlib.contextmanager
def calm_collector() -> Iterator[None]:
    """Keep collections short and rare inside the block.

    What Locust and its web stack hold for ever is left out, as walking through it would stop all
    users for 30 ms at each full collection. Whatever was frozen is looked at again after the exit.
    """
    before = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()


def die_with_parent() -> None:
    """Ask Linux for SIGTERM when the parent dies; elsewhere nothing happens.

    Only where a parent of ours said so in the environment: a shell's death is not ours.
    """
    if os.environ.get("KVSWARM_TARGET") is not None and sys.platform.startswith("linux"):
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def end_forked_workers(environment: Any) -> None:
    """End the workers of `--processes` before the master leaves without having begun.

    Locust's own farewell forgets those that are still trying to reach it, for five minutes.
    """
    if environment.parsed_options.processes:
        for child in psutil.Process().children():
            child.terminate()
