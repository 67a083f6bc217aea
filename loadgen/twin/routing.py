"""What a router in front of replicas decides, a policy each."""

from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from itertools import count
from typing import Protocol

from loadgen.twin.ledger import TwinRequest


class Router(Protocol):
    """Of one run; asked once for each request, in the order of sending."""

    def choose(self, request: TwinRequest, open_requests: Sequence[int]) -> int:
        """The index of a replica, by how many requests each has not answered."""


class RoundRobin:
    """One after the other."""

    def __init__(self) -> None:
        self._turn = count()

    def choose(self, request: TwinRequest, open_requests: Sequence[int]) -> int:
        return next(self._turn) % len(open_requests)


class LeastConnections:
    """Where the fewest are open, the first of several; HAProxy's `leastconn` without weights."""

    def choose(self, request: TwinRequest, open_requests: Sequence[int]) -> int:
        return min(range(len(open_requests)), key=open_requests.__getitem__)


class ContextHash:
    """Requests of one context to one replica, as a hash of a session header does."""

    def choose(self, request: TwinRequest, open_requests: Sequence[int]) -> int:
        digest = sha256(request.context.encode()).digest()
        return int.from_bytes(digest[:8], "big") % len(open_requests)


ROUTERS: Mapping[str, Callable[[], Router]] = {
    "round-robin": RoundRobin,
    "least-connections": LeastConnections,
    "context-hash": ContextHash,
}
