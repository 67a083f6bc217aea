"""What the order of waiting requests asks the engine, and what it tells whoever watches."""

from collections.abc import Collection, Iterator, Sequence
from typing import Literal, Protocol, TypeVar

R = TypeVar("R")
R_contra = TypeVar("R_contra", contravariant=True)

Reason = Literal["oldest", "resident", "overtakes", "wait"]
"""Why a turn began: its request is the oldest; its prefix is cached; the oldest is overdue."""


class EngineView(Protocol[R]):
    """The engine as the order sees it. Nothing here changes anything."""

    def chain_of(self, request: R) -> Sequence[object]:
        """The chained hashes of the full blocks of a request."""

    def blocks_of(self, request: R, resident: int = 0) -> int:
        """How many it takes, with its next token, where so many leading ones of its prompt are."""

    def per_block(self) -> int:
        """How many blocks of the KV cache hold one of a prompt: groups of layers have their own."""

    def resident_blocks(self, request: R, more_than: int) -> int:
        """How many leading blocks of the prompt are in the KV cache; 0 unless `more_than` are."""

    def kv_usage(self) -> float:
        """The share of the KV cache's blocks that requests hold now, 0 to 1."""

    def cache_blocks(self) -> int:
        """How many blocks the KV cache has."""

    def free_blocks(self) -> int:
        """How many blocks nobody holds."""

    def next_freed(self) -> Iterator[object]:
        """The hashes of the blocks that nobody holds, next to be given first; None without one."""

    def reserved_blocks(self) -> int:
        """How many blocks running requests have still to be given for their prompts."""

    def running_requests(self) -> Collection[R]:
        """The requests that run."""

    def free_seats(self) -> int:
        """How many more requests may run."""

    def is_blocked(self, request: R) -> bool:
        """Whether it cannot run, whatever there is room for: something of it is not ready."""

    def is_admitted(self, request: R) -> bool:
        """Whether a request that was popped has been given KV blocks, and not been skipped."""

    def now_s(self) -> float:
        """A monotonic clock."""


class Observer(Protocol[R_contra]):
    """Told what was decided. Calls are part of the engine's step: they must be short."""

    def chosen(self, seconds: float) -> None:
        """It took so long to choose the context of a turn."""

    def turn_began(self, reason: Reason) -> None:
        """Another context's turn began, or the same one's anew."""

    def turn_ended(self, admitted: int) -> None:
        """A turn ended after so many requests."""

    def admitted(self, request: R_contra, waited_s: float, overtakes_max: int) -> None:
        """A request was admitted for the first time; the oldest waiting was overtaken so often."""


class Contexts(Protocol):
    """What waits, counted."""

    @property
    def contexts(self) -> int:
        """How many groups wait."""


class Watcher(Observer[R_contra], Protocol[R_contra]):
    """An observer of the queue around the order as well."""

    def arrived(self, is_labelled: bool) -> None:
        """A new request came, with or without a label."""

    def looked(self, requests: int, waiting: Contexts) -> None:
        """The engine asked how many requests wait, as it does in each step."""

    def failed(self) -> None:
        """The queue broke and is used no more."""


class Nobody:
    """Watches nothing."""

    def chosen(self, seconds: float) -> None: ...
    def turn_began(self, reason: Reason) -> None: ...
    def turn_ended(self, admitted: int) -> None: ...
    def admitted(self, request: object, waited_s: float, overtakes_max: int) -> None: ...
    def arrived(self, is_labelled: bool) -> None: ...
    def looked(self, requests: int, waiting: Contexts) -> None: ...
    def failed(self) -> None: ...
