"""Imports Locust without what a swarm does not need at its start: half of the wait for it.

Locust imports its web stack (Flask, Jinja) for headless runs too, and ZeroMQ for a single process;
gevent, when it patches the standard library, reads the metadata of every installed package again
for each part that it patches: 25 times. Neither is changed here, only put off, or done once.
"""

import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module, metadata
from types import ModuleType
from typing import Any

LATER: Mapping[str, tuple[str, ...]] = {
    "locust.web": ("WebUI",),
    "locust.html": ("get_html_report", "process_html_filename"),
    "locust.rpc.zmqrpc": ("Client", "Server"),
}
"""Modules that Locust imports in any case, and what it calls of them, where it does."""


def import_locust() -> Callable[[], None]:
    """Import Locust; returns its `main`. Whoever imports `LATER`'s modules after it gets them."""
    if not os.getenv("LOCUST_SKIP_MONKEY_PATCH"):
        with _one_look_at_packages():
            import_module("gevent.monkey").patch_all()  # as Locust would; it finds it done
    with _put_off():
        main: Callable[[], None] = import_module("locust.main").main
    return main


@contextlib.contextmanager
def _one_look_at_packages() -> Iterator[None]:
    """The entry points of all packages are read once inside the block."""
    before, found = metadata.entry_points, metadata.entry_points()
    metadata.entry_points = found.select
    try:
        yield
    finally:
        metadata.entry_points = before


@contextlib.contextmanager
def _put_off() -> Iterator[None]:
    """Inside the block `LATER`'s modules hold stand-ins that import the real ones when called."""
    absent = [name for name in LATER if name not in sys.modules]
    for name in absent:
        sys.modules[name] = _stand_in(name)
    try:
        yield
    finally:
        for name in absent:
            del sys.modules[name]
            package, _, child = name.rpartition(".")
            vars(sys.modules.get(package)).pop(child, None)


def _stand_in(name: str) -> ModuleType:
    module = ModuleType(name)
    for attribute in LATER[name]:
        setattr(module, attribute, _later(name, attribute))
    return module


def _later(name: str, attribute: str) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        return getattr(import_module(name), attribute)(*args, **kwargs)

    return call
