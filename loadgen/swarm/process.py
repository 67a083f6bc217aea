"""A process of a swarm: its garbage collector, and that it does not outlive its parent.

Imports nothing of Locust, as it is needed before Locust is imported.
"""

import contextlib
import ctypes
import gc
import os
import signal
import sys
import time
from collections.abc import Iterator

import psutil

THRESHOLDS = (10_000, 20, 20)
"""Requests make many objects and hardly any cycles: look for them ten times less often."""
PR_SET_PDEATHSIG = 1

LEAVE_S = 10.0
"""How long a worker of `--processes` may take to leave after its leader has told it to."""

_importer_pid = os.getpid()  # the leader's: `--processes` forks after the import


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
    """End with the parent, but only where a parent of ours said so in the environment: a shell's
    death is not ours."""
    if os.environ.get("KVSWARM_TARGET") is not None:
        end_with_parent()


def end_with_parent() -> None:
    """Ask Linux for SIGTERM when the parent dies; elsewhere nothing happens."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def is_forked() -> bool:
    """Whether this is a worker of `--processes`, which its leader ends."""
    return os.getpid() != _importer_pid


def has_leader() -> bool:
    """Whether the process that forked this one is still there."""
    return os.getppid() == _importer_pid


def end_forked_workers(grace_s: float = LEAVE_S) -> None:
    """Wait until the workers of `--processes` have left, then kill those that have not.

    Locust's own farewell forgets one that is stopped, or that still tries to reach its leader.
    """
    deadline = time.monotonic() + grace_s
    workers = _forked_workers()
    while any(is_at_work(worker.pid) for worker in workers) and time.monotonic() < deadline:
        time.sleep(0.02)
    for worker in workers:
        with contextlib.suppress(psutil.NoSuchProcess):
            worker.kill()


def count_forked_workers() -> int:
    """Those that live and are not stopped."""
    return sum(is_at_work(worker.pid) for worker in _forked_workers())


def _forked_workers() -> list[psutil.Process]:
    return [child for child in psutil.Process().children() if _is_forked_from_us(child)]


def _is_forked_from_us(child: psutil.Process) -> bool:
    """A program that a locustfile has started has a command line of its own."""
    with contextlib.suppress(psutil.Error):
        return child.cmdline() == psutil.Process().cmdline()
    return False


def is_at_work(pid: int) -> bool:
    """Whether the process lives and is not stopped."""
    with contextlib.suppress(psutil.Error):
        return psutil.Process(pid).status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_STOPPED)
    return False
