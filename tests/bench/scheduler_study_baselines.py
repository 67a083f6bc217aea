"""Two orders that SGLang describes, as waiting queues of vLLM's scheduler: lpm and dfs-weight."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from virtual_engine import VirtualEngine
from vllm.v1.core.sched.request_queue import RequestQueue
from vllm.v1.request import Request

from loadgen.twin.engine import StepInFlight
from scheduler_plugin.residency import Residency

FCFS_ABOVE = 128
"""With more waiting requests SGLang's lpm goes first come, first served."""


class SortedQueue(RequestQueue):
    """Sorted anew at each step of the engine; preempted requests and low priority values go first.

    `rank` gives each waiting request its place.
    """

    def __init__(self, scheduler: Any) -> None:
        self._residency = Residency(scheduler)
        self.block_size = int(scheduler.block_size)
        self._by_priority = scheduler.policy.value == "priority"
        self._waiting: dict[Request, int] = {}
        self._first: list[Request] = []
        self._line: list[Request] | None = None
        self._arrived = 0

    def begin_step(self) -> None:
        """The engine is about to schedule."""
        self._line = None

    def ranks(self, waiting: list[Request]) -> dict[Request, float]:
        """Low first; equal ones by arrival."""
        raise NotImplementedError

    def add_request(self, request: Request) -> None:
        self._waiting[request] = self._arrived
        self._arrived += 1
        self._line = None

    def peek_request(self) -> Request:
        if self._first:
            return self._first[0]
        if self._line is None:
            ranks = self.ranks(list(self._waiting))
            self._line = sorted(
                self._waiting, key=lambda r: (self._level(r), ranks[r], self._waiting[r])
            )
        return self._line[0]

    def pop_request(self) -> Request:
        request = self.peek_request()
        if self._first:
            return self._first.pop(0)
        assert self._line is not None
        del self._line[0]
        del self._waiting[request]
        return request

    def prepend_request(self, request: Request) -> None:
        self._first.insert(0, request)

    def prepend_requests(self, requests: Iterable[Request]) -> None:
        for request in requests:
            self.add_request(request)

    def remove_request(self, request: Request) -> None:
        self.remove_requests([request])

    def remove_requests(self, requests: Iterable[Request]) -> None:
        for request in requests:
            self._waiting.pop(request, None)
            if request in self._first:
                self._first.remove(request)
        self._line = None

    def __bool__(self) -> bool:
        return bool(self._waiting or self._first)

    def __len__(self) -> int:
        return len(self._waiting) + len(self._first)

    def __iter__(self) -> Iterator[Request]:
        return iter([*self._first, *self._waiting])

    def _level(self, request: Request) -> int:
        return request.priority if self._by_priority else 0


class LpmQueue(SortedQueue):
    """The longest cached prefix first."""

    def ranks(self, waiting: list[Request]) -> dict[Request, float]:
        if len(waiting) > FCFS_ABOVE:
            return dict.fromkeys(waiting, 0.0)
        return {r: -float(self._residency.blocks(r.block_hashes)) for r in waiting}


class DfsWeightQueue(SortedQueue):
    """Depth first through the tree of what is cached, where most wait first."""

    def ranks(self, waiting: list[Request]) -> dict[Request, float]:
        children: dict[object, dict[object, None]] = defaultdict(dict)
        weight: dict[object, int] = defaultdict(int)
        at: dict[object, list[Request]] = defaultdict(list)
        for request in waiting:
            node: object = None
            for block in request.block_hashes[: self._residency.blocks(request.block_hashes)]:
                children[node][block] = None
                weight[block] += 1
                node = block
            at[node].append(request)
        line: list[Request] = []
        stack: list[tuple[object, bool]] = [(None, False)]
        while stack:
            node, is_done = stack.pop()
            if is_done:
                line += at[node]
                continue
            stack.append((node, True))
            below = sorted(children[node], key=lambda block: weight[block])
            stack += [(block, False) for block in below]
        return {request: float(place) for place, request in enumerate(line)}


class FewestLeftQueue(SortedQueue):
    """The fewest prompt tokens to compute first."""

    def ranks(self, waiting: list[Request]) -> dict[Request, float]:
        return {
            r: r.num_prompt_tokens - self._residency.blocks(r.block_hashes) * self.block_size
            for r in waiting
        }


class RankedQueue(SortedQueue):
    """By a place that each request was given beforehand."""

    def __init__(self, places: Mapping[str, float], scheduler: Any) -> None:
        super().__init__(scheduler)
        self._places = places

    def ranks(self, waiting: list[Request]) -> dict[Request, float]:
        return {request: self._places[request.request_id] for request in waiting}


class QueueEngine(VirtualEngine):
    """A virtual engine with one of these queues in place of vLLM's."""

    def __init__(self, kind: Callable[[Any], SortedQueue], *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._queue = self.scheduler.waiting = kind(self.scheduler)

    def _schedule(self) -> StepInFlight:
        self._queue.begin_step()
        return super()._schedule()
