"""Imports Locust without what a swarm does not need at its start: half of the wait for it.

Locust imports its web stack (Flask, Jinja) for headless runs too, ZeroMQ for a single process, and
requests for users that send nothing by it; gevent, when it patches the standard library, reads the
metadata of every installed package again for each part that it patches: 25 times. Nothing is
changed here, only put off, or done once. A Locust that takes something else of these modules than
is known here is imported as it is.
"""

import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module, metadata
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import find_spec
from types import FunctionType, ModuleType
from typing import Any

LATER: Sequence[Mapping[str, tuple[str, ...]]] = (
    {"locust.web": ("WebUI",)},
    {"locust.html": ("get_html_report", "process_html_filename")},
    {"locust.rpc.zmqrpc": ("Client", "Server")},
    {
        "locust.clients": ("HttpSession", "RestResponseContextManager"),
        "urllib3": ("PoolManager",),
        "requests": ("get",),
        "requests.exceptions": ("RequestException",),
        "requests.utils": ("get_encoding_from_headers",),
        "charset_normalizer": ("detect",),
    },
)
"""Modules that Locust imports in any case, and what it takes of them, in groups that are imported
together: an `except RequestException` must not meet a stand-in, and none is raised before."""


NO_PATCH, NO_URLLIB3_PATCH = "LOCUST_SKIP_MONKEY_PATCH", "LOCUST_SKIP_URLLIB3_PATCH"
GEVENT = "gevent.plugins."
"""What the groups of entry points begin with that gevent calls when it patches."""


def import_locust() -> Callable[[], None]:
    """Import Locust; returns its `main`. Whoever imports `LATER`'s modules after it gets them."""
    if not os.getenv(NO_PATCH):
        with _one_look_at_packages():
            import_module("gevent.monkey").patch_all()  # as Locust would; it finds it done
    try:
        with _patching_later(), _put_off():
            main: Callable[[], None] = import_module("locust.main").main
    except Exception:  # whatever a stand-in was not made for
        for name in [name for name in sys.modules if name.partition(".")[0] == "locust"]:
            del sys.modules[name]
        main = import_module("locust.main").main
    return main


@contextlib.contextmanager
def _one_look_at_packages() -> Iterator[None]:
    """Inside the block the entry points for gevent are those read once, at the beginning."""
    before: Callable[..., Any] = metadata.entry_points
    found = metadata.EntryPoints(tuple(_points_for_gevent()))

    def entry_points(**wanted: Any) -> Any:
        is_gevents = str(wanted.get("group", "")).startswith(GEVENT)
        return found.select(**wanted) if is_gevents else before(**wanted)

    vars(metadata)["entry_points"] = entry_points
    try:
        yield
    finally:
        vars(metadata)["entry_points"] = before


def _points_for_gevent() -> Iterator[metadata.EntryPoint]:
    """Looking for a word in the files of all packages costs an eighth of parsing them."""
    for package in metadata.distributions():
        if GEVENT in (package.read_text("entry_points.txt") or ""):
            yield from (point for point in package.entry_points if point.group.startswith(GEVENT))


@contextlib.contextmanager
def _put_off() -> Iterator[None]:
    """Inside the block `LATER`'s modules are stand-ins; the real ones come with a call."""
    groups = [_StandIns(group) for group in LATER]
    absent = {name: module for group in groups for name, module in group.modules.items()}
    sys.modules.update(absent)
    try:
        yield
    finally:
        for name in absent:
            del sys.modules[name]
        for name in absent:
            package, _, child = name.rpartition(".")
            if package in sys.modules:
                vars(sys.modules[package]).pop(child, None)


@contextlib.contextmanager
def _patching_later() -> Iterator[None]:
    """Inside the block Locust leaves urllib3 as it is; it is patched whenever it is imported."""
    if any(map(os.getenv, (NO_PATCH, NO_URLLIB3_PATCH))) or "urllib3" in sys.modules:
        yield
        return
    os.environ[NO_URLLIB3_PATCH] = "1"
    try:
        yield
    finally:
        del os.environ[NO_URLLIB3_PATCH]
    sys.meta_path.insert(0, _PatchedPool())


class _PatchedPool(MetaPathFinder):
    """Has urllib3's pools wait by gevent, as Locust has them, once there are any."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if name != "urllib3.connectionpool":
            return None
        sys.meta_path.remove(self)
        spec = find_spec(name)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _PatchingLoader(name, spec.loader.path)
        return spec


class _PatchingLoader(SourceFileLoader):
    def exec_module(self, module: ModuleType) -> None:
        super().exec_module(module)
        vars(module)["ConnectionPool"].QueueCls = import_module("gevent.queue").LifoQueue


class _StandIn(ModuleType):
    """Has nothing of its own: what is not known beforehand is asked of the real module."""

    def __getattr__(self, name: str) -> Any:
        if sys.modules.get(self.__name__) is self:
            raise AttributeError(name)
        return getattr(import_module(self.__name__), name)


class _StandIns:
    """Modules that hold nothing but functions; the first call brings all the real ones."""

    def __init__(self, group: Mapping[str, tuple[str, ...]]) -> None:
        self.modules: Mapping[str, ModuleType] = {
            name: _StandIn(name) for name in group if name not in sys.modules
        }
        self._calls: dict[Callable[..., Any], tuple[str, str]] = {}
        for name, module in self.modules.items():
            for attribute in group[name]:
                setattr(module, attribute, self._later(name, attribute))

    def _later(self, name: str, attribute: str) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            self._settle()
            return getattr(import_module(name), attribute)(*args, **kwargs)

        self._calls[call] = (name, attribute)
        return call

    def _settle(self) -> None:
        """Put what is real wherever Locust holds a stand-in."""
        locust = [module for name, module in sys.modules.items() if name.startswith("locust")]
        for module in locust:
            for key, value in list(vars(module).items()):
                if isinstance(value, FunctionType) and value in self._calls:
                    name, attribute = self._calls[value]
                    setattr(module, key, getattr(import_module(name), attribute))
                elif isinstance(value, ModuleType) and self.modules.get(value.__name__) is value:
                    setattr(module, key, import_module(value.__name__))
