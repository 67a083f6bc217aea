"""The public names of kvswarm: what a locustfile imports.

    from kvswarm import ContextUser, set_defaults

A name is loaded when it is first asked for. The users are Locust's, and importing Locust replaces
Python's threads and sockets by gevent's: asking for `__version__` must not do that to a program.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from loadgen.client.exchange import Exchange
    from loadgen.context import Batch, Request
    from loadgen.errors import KvswarmError, UsageError
    from loadgen.record import BatchOutcome, BatchRecord, Outcome, RequestRecord
    from loadgen.swarm.context_user import ContextUser
    from loadgen.swarm.plugin import set_defaults
    from loadgen.swarm.sending.batch_sender import BatchTurn
    from loadgen.swarm.sending.request_sender import Turn
    from loadgen.swarm.user import AsyncUser

__all__ = [
    "AsyncUser",
    "Batch",
    "BatchOutcome",
    "BatchRecord",
    "BatchTurn",
    "ContextUser",
    "Exchange",
    "KvswarmError",
    "Outcome",
    "Request",
    "RequestRecord",
    "Turn",
    "UsageError",
    "__version__",
    "set_defaults",
]

__version__: str

_HOMES = {
    "loadgen.client.exchange": ("Exchange",),
    "loadgen.context": ("Batch", "Request"),
    "loadgen.errors": ("KvswarmError", "UsageError"),
    "loadgen.record": ("BatchOutcome", "BatchRecord", "Outcome", "RequestRecord"),
    "loadgen.swarm.context_user": ("ContextUser",),
    "loadgen.swarm.plugin": ("set_defaults",),
    "loadgen.swarm.sending.batch_sender": ("BatchTurn",),
    "loadgen.swarm.sending.request_sender": ("Turn",),
    "loadgen.swarm.user": ("AsyncUser",),
}


def __getattr__(name: str) -> object:
    if name == "__version__":
        return import_module("importlib.metadata").version("kvswarm")
    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(home), name)
    raise AttributeError(f"module 'kvswarm' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
