"""A supervised swarm must not outlive the process that runs its engine."""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """Ask Linux for SIGTERM when the parent dies; elsewhere nothing happens.

    Only where a parent of ours said so in the environment: a shell's death is not ours.
    """
    if os.environ.get("KVSWARM_TARGET") is not None and sys.platform.startswith("linux"):
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
