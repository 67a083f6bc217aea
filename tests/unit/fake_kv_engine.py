"""An engine without a model: a cache of block hashes, a clock, and a record of who was admitted."""

from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Container, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Protocol

_numbers = count()


@dataclass(eq=False)
class FakeRequest:
    """One request: the context it truly is of, and what the order may see of it."""

    context: str
    label: str | None
    chain: tuple[object, ...]
    priority: int = 0
    number: int = field(default_factory=lambda: next(_numbers))

    def __repr__(self) -> str:
        return f"{self.context}#{self.number}"


def labelled(context: str, **more: int) -> FakeRequest:
    """A request with a label, of two blocks that its context shares."""
    return FakeRequest(context, context, chain_of(context, 2), **more)


def unlabelled(context: str, question_blocks: int = 0) -> FakeRequest:
    """A request known by its prefix alone: eight blocks of its context, then its own."""
    own = tuple(f"{context}+{next(_numbers)}" for _ in range(question_blocks))
    return FakeRequest(context, None, chain_of(context, 8) + own)


def short() -> FakeRequest:
    """A request without a full block: a context of its own."""
    return FakeRequest(f"short{next(_numbers)}", None, ())


def chain_of(context: str, blocks: int) -> tuple[str, ...]:
    """The chained hashes of a context's first blocks."""
    return tuple(f"{context}/{block}" for block in range(blocks))


class FakeKvEngine:
    """An `EngineView` over a least-recently-used cache of `blocks` block hashes.

    `residency`, when set, answers in place of the cache for whatever can be in it: prompts whose
    first block was ever computed. `lookups` counts how often it was asked.
    """

    def __init__(self, blocks: int = 32, seats: int = 64) -> None:
        self.seats = seats
        self.clock_s = 0.0
        self.usage = 1.0
        self.admitted: list[FakeRequest] = []
        self.running: dict[FakeRequest, None] = {}
        self.blocked: set[FakeRequest] = set()
        self._ever_cached: set[object] = set()
        self._taken: set[FakeRequest] = set()
        self.residency: Callable[[FakeRequest], int] | None = None
        self.lookups = 0
        self._blocks = blocks
        self._cache: OrderedDict[object, None] = OrderedDict()

    def resident_blocks(self, request: FakeRequest, more_than: int) -> int:
        self.lookups += 1
        cached = self._cached_blocks(request)
        return cached if cached > more_than else 0

    def _cached_blocks(self, request: FakeRequest) -> int:
        if self.residency is not None:
            is_known = bool(request.chain) and request.chain[0] in self._ever_cached
            return self.residency(request) if is_known else 0
        cached = 0
        while cached < len(request.chain) and request.chain[cached] in self._cache:
            cached += 1
        return cached

    def chain_of(self, request: FakeRequest) -> Sequence[object]:
        return request.chain

    def blocks_of(self, request: FakeRequest, resident: int = 0) -> int:
        return len(request.chain) + 1 - resident

    def per_block(self) -> int:
        return 1

    def cache_blocks(self) -> int:
        return self._blocks

    def free_blocks(self) -> int:
        return self._blocks - sum(1 for _ in self._held())

    def next_freed(self) -> Iterator[object]:
        held = self._held()
        return (block for block in self._cache if block not in held)

    def _held(self) -> set[object]:
        return {block for request in self.running for block in request.chain}

    def reserved_blocks(self) -> int:
        return 0

    def running_requests(self) -> Collection[FakeRequest]:
        return self.running

    def free_seats(self) -> int:
        return self.seats - len(self.running)

    def kv_usage(self) -> float:
        return self.usage

    def is_blocked(self, request: FakeRequest) -> bool:
        return request in self.blocked

    def is_admitted(self, request: FakeRequest) -> bool:
        return request in self._taken

    def now_s(self) -> float:
        return self.clock_s

    def admit(self, request: FakeRequest) -> None:
        """Give a popped request its blocks; the oldest ones of others make room."""
        self.admitted.append(request)
        self.running[request] = None
        self._taken.add(request)
        self.evict(to=self._blocks - len(request.chain))
        self._ever_cached.update(request.chain[:1])
        for block in reversed(request.chain):
            self._cache[block] = None
            self._cache.move_to_end(block)

    def evict(self, to: int = 0) -> None:
        """Shrink the cache to so many blocks."""
        while len(self._cache) > max(to, 0):
            self._cache.popitem(last=False)

    def finish(self, request: FakeRequest) -> None:
        """A running request ended."""
        del self.running[request]

    def send_back(self, request: FakeRequest) -> None:
        """A running request must wait again: it was preempted, or its session goes on."""
        del self.running[request]
        self._taken.remove(request)


class WaitingOrder(Protocol):
    """What `ContextOrder`, `PriorityLevels` and a plain deque's stand-in have in common."""

    def __len__(self) -> int: ...
    def add(self, request: FakeRequest, label: str | None, chain: Sequence[object]) -> None: ...
    def peek(self) -> FakeRequest: ...
    def pop(self) -> FakeRequest: ...
    def give_back(self, requests: "deque[FakeRequest]") -> None: ...


def arrive(order: WaitingOrder, *requests: FakeRequest) -> None:
    """Hand new requests to the order as they came."""
    for request in requests:
        order.add(request, request.label, request.chain)


def schedule(
    order: WaitingOrder,
    engine: FakeKvEngine,
    most: int = 1_000_000,
    blocked: Container[FakeRequest] = (),
) -> list[FakeRequest]:
    """One scheduling step as vLLM does it: admit up to `most`, skip the blocked, hand them back."""
    admitted: list[FakeRequest] = []
    skipped: deque[FakeRequest] = deque()
    while len(order) and len(admitted) < most:
        request = order.peek()
        if request in blocked:
            assert order.pop() is request
            skipped.appendleft(request)
            continue
        engine.evict(to=16)  # allocation evicts between peek and pop
        assert order.pop() is request
        engine.admit(request)
        admitted.append(request)
    if skipped:
        order.give_back(skipped)
    return admitted
