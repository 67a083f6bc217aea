"""What a router in front of replicas decides, a policy each."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import count, takewhile
from typing import Protocol, Self

from loadgen.errors import UsageError
from loadgen.locality.trace_sources import engines_of
from loadgen.runs.recorded import SIMULATED, RecordedRun
from loadgen.twin.ledger import TwinRequest

MOST_REPLICAS = 64


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
    """Where the fewest are open, of several the one that was chosen longest ago; HAProxy's
    `leastconn` without weights."""

    def __init__(self) -> None:
        self._turn = count()
        self._chosen: dict[int, int] = {}

    def choose(self, request: TwinRequest, open_requests: Sequence[int]) -> int:
        place = min(
            range(len(open_requests)),
            key=lambda place: (open_requests[place], self._chosen.get(place, -1)),
        )
        self._chosen[place] = next(self._turn)
        return place


class ContextHash:
    """Requests of one context to one replica, as a hash of a session header does."""

    def choose(self, request: TwinRequest, open_requests: Sequence[int]) -> int:
        digest = sha256(request.context.encode()).digest()
        return int.from_bytes(digest[:8], "big") % len(open_requests)


class AsRecorded:
    """Each request to the replica that answered it in a run, by `places`; one that none answered
    where the fewest are open."""

    def __init__(self, places: Mapping[str, int]) -> None:
        self._places = places

    def choose(self, request: TwinRequest, open_requests: Sequence[int]) -> int:
        usual = min(range(len(open_requests)), key=open_requests.__getitem__)
        return self._places.get(request.name, usual)


class CacheAware:
    """To the replica that was sent the longest beginning of a prompt; to the one that was sent
    least where no beginning is long enough; to the least busy one where they are far apart.

    That is vLLM's router with its defaults, which looks at texts where this looks at tokens.
    """

    def __init__(
        self, least_share: float = 0.3, most_apart: int = 64, most_times: float = 1.5
    ) -> None:
        self._least_share, self._most_apart, self._most_times = least_share, most_apart, most_times
        self._sent: list[_Prefixes] = []

    def choose(self, request: TwinRequest, open_requests: Sequence[int]) -> int:
        if not self._sent:
            self._sent = [_Prefixes() for _ in open_requests]
        chosen = self._chosen(request.prompt, open_requests)
        self._sent[chosen].add(request.prompt)
        return chosen

    def _chosen(self, prompt: tuple[int, ...], open_requests: Sequence[int]) -> int:
        most, least = max(open_requests), min(open_requests)
        if most - least > self._most_apart and most > least * self._most_times:
            return open_requests.index(least)
        known = [each.known_tokens(prompt) for each in self._sent]
        if max(known) > self._least_share * len(prompt):
            return known.index(max(known))
        return min(range(len(self._sent)), key=lambda place: self._sent[place].tokens)


class _Prefixes:
    """Beginnings of prompts, in pieces of some tokens."""

    PIECE_TOKENS = 16

    def __init__(self) -> None:
        self._known: set[int] = set()
        self.tokens = 0

    def known_tokens(self, prompt: tuple[int, ...]) -> int:
        return self.PIECE_TOKENS * sum(
            1 for _ in takewhile(self._known.__contains__, self._pieces(prompt))
        )

    def add(self, prompt: tuple[int, ...]) -> None:
        new = set(self._pieces(prompt)) - self._known
        self._known |= new
        self.tokens += self.PIECE_TOKENS * len(new)

    def _pieces(self, prompt: tuple[int, ...]) -> Iterator[int]:
        """Each with what is before it."""
        before = 0
        for start in range(0, len(prompt), self.PIECE_TOKENS):
            before = hash((before, prompt[start : start + self.PIECE_TOKENS]))
            yield before


ROUTERS: Mapping[str, Callable[[], Router]] = {
    "round_robin": RoundRobin,
    "cache_aware": CacheAware,
    "consistent_hash": ContextHash,
    "haproxy-hash": ContextHash,
    "haproxy-leastconn": LeastConnections,
}
"""By the names of `--router` of targets with several engines; the others are not modelled."""
HASHED = ("consistent_hash", "haproxy-hash")
"""Of these nobody knows which context goes where but the router itself."""


@dataclass(frozen=True, slots=True)
class Fleet:
    """So many engines of one shape, and the policy of the router before several; "" is in turn."""

    replicas: int = 1
    router: str = ""

    @classmethod
    def of_run(cls, run: RecordedRun) -> Self:
        """That a run was made on, or simulated on; its policy need not be modelled. Raises
        UsageError where a run of several engines does not tell it."""
        told = run.target[SIMULATED] if run.is_simulated else run.target
        count, router = told.get("replicas", 1), told.get("router")
        if not isinstance(count, int) or (max(count, len(engines_of(run))) > 1 and router is None):
            raise UsageError(
                f"{run.path} has requests of several engines and does not tell their router: give a"
                " run of one engine"
            )
        return cls(count, str(router)) if count > 1 else cls()

    @property
    def words(self) -> str:
        """As in `on 2 engines behind cache_aware`."""
        behind = self.router or "round_robin"
        return f"{self.replicas} engines behind {behind}" if self.replicas > 1 else "one engine"

    def require_modelled(self) -> None:
        """Raise UsageError for what cannot be simulated."""
        if not 1 <= self.replicas <= MOST_REPLICAS:
            raise UsageError(
                f"--replicas {self.replicas} is out of range: give 1 to {MOST_REPLICAS}"
            )
        if self.router and self.router not in ROUTERS:
            raise UsageError(
                f"--router {self.router} is not modelled: choose one of {', '.join(ROUTERS)}"
            )
        if self.router and self.replicas == 1:
            raise UsageError("--router needs more than one engine: give --replicas 2")

    def new_router(self) -> Router:
        """Of one run."""
        return ROUTERS[self.router]() if self.router else RoundRobin()


ONE_ENGINE = Fleet()
