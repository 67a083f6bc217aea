"""No process of a swarm may outlive the one that started it."""

import ctypes
import os
import signal
import sys
from typing import Any

import psutil

PR_SET_PDEATHSIG = 1


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
