"""A process that must not outlive its parent: workers of `--processes`, a supervised swarm."""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """Ask Linux for SIGTERM when the parent dies; elsewhere nothing happens.

    Only where a parent of ours said so in the environment: a shell's death is not ours.
    """
    if os.environ.get("KVSWARM_TARGET") is None or not sys.platform.startswith("linux"):
        return
    set_parent_death_signal()


def set_parent_death_signal() -> None:
    """Have the kernel send SIGTERM to this process when its parent dies (Linux)."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
