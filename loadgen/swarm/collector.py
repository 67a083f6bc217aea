"""Python's garbage collector during a swarm."""

import contextlib
import gc
from collections.abc import Iterator

THRESHOLDS = (10_000, 20, 20)
"""Requests make many objects and hardly any cycles: look for them ten times less often."""


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
