"""What vLLM says of its waiting requests and asks about them, told to the order of ours."""

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import cached_property, lru_cache
from operator import attrgetter
from typing import Any

from vllm.v1.core.kv_cache_utils import KVCacheBlock
from vllm.v1.request import Request, RequestStatus

from scheduler_plugin.engine_view import Watcher
from scheduler_plugin.levels import PriorityLevels
from scheduler_plugin.order import ContextOrder
from scheduler_plugin.residency import Residency
from scheduler_plugin.roots import Roots
from scheduler_plugin.settings import OrderSettings

LABEL = "context"
"""The key of `vllm_xargs`, which vLLM hands on as `SamplingParams.extra_args`."""

STILL_WAITING = frozenset(
    {
        RequestStatus.WAITING,
        RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR,
        RequestStatus.WAITING_FOR_STREAMING_REQ,
        RequestStatus.PREEMPTED,
    }
)
"""What a popped request may be when vLLM has skipped it. A request whose KV is being loaded from
elsewhere has its blocks: it was admitted."""


class SchedulerView:
    """A vLLM scheduler, as the order of its waiting requests sees it."""

    def __init__(self, scheduler: Any) -> None:
        self._scheduler = scheduler
        self._manager = scheduler.kv_cache_manager
        self._residency = Residency(scheduler)
        self._size = self._residency.block_tokens
        # Kept, as the blocks that are given next are looked at again and again.
        self._hash_in = lru_cache(1 << 14)(self._residency.hash_in)
        pool = scheduler.kv_cache_manager.block_pool
        # Asked at each admission: vLLM's own methods, without one of ours around them.
        self.free_blocks: Callable[[], int] = pool.get_num_free_blocks
        """How many blocks nobody holds."""
        self._given_next: Callable[[None], Iterator[KVCacheBlock]] = (
            pool.free_block_queue.iter_blocks_after
        )

    def chain_of(self, request: Request) -> Sequence[object]:
        """The chained hashes of the full blocks of a request."""
        stride = self._residency.stride
        chain: Sequence[object] = request.block_hashes
        return chain if stride == 1 else chain[stride - 1 :: stride]

    def blocks_of(self, request: Request, resident: int = 0) -> int:
        """How many it takes, with its next token, where so many leading ones of its prompt are."""
        layout, tokens = self._residency, request.num_tokens
        blocks = layout.per_block * (tokens // self._size + 1 - resident)
        for size, most in layout.windows:
            blocks += min((tokens - resident * self._size) // size + 1, most)
        return int(blocks)

    def per_block(self) -> int:
        """How many blocks of the KV cache hold one of a prompt."""
        return self._residency.per_block

    def cache_blocks(self) -> int:
        """How many blocks the KV cache has."""
        return int(self._manager.block_pool.num_gpu_blocks)

    def next_freed(self) -> Iterator[object]:
        """The hashes of the blocks that nobody holds, next to be given first; None without one."""
        return map(self._hash_in, map(_key_of, self._given_next(None)))

    def reserved_blocks(self) -> int:
        """How many blocks running requests have still to be given for their prompts."""
        size, missing = self._size, 0
        for request in self._scheduler._inflight_prefills:
            blocks = request.num_tokens // size - (request.num_computed_tokens - 1) // size
            missing += max(0, blocks)
        return missing * self._residency.per_block

    def free_seats(self) -> int:
        """How many more requests may run. A session that waits for its client's next part keeps
        its seat."""
        s = self._scheduler
        return int(s.max_num_active_reqs - len(s.running) - s.num_waiting_for_streaming_input)

    def running_requests(self) -> Collection[Request]:
        """The requests that run."""
        running: list[Request] = self._scheduler.running
        return running

    def resident_blocks(self, request: Request, more_than: int) -> int:
        """How many leading blocks vLLM would take from its cache; 0 unless `more_than` are."""
        if request.skip_reading_prefix_cache:
            return 0
        return self._residency.blocks(request.block_hashes, more_than)

    def kv_usage(self) -> float:
        """The share of KV blocks that requests hold."""
        return float(self._manager.usage)

    def is_blocked(self, request: Request) -> bool:
        """Whether its grammar is not made yet, or its session waits for its client's next part."""
        status = request.status
        if status is RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR:
            output = request.structured_output_request
            return output is None or output.grammar is None
        return status is RequestStatus.WAITING_FOR_STREAMING_REQ

    def is_admitted(self, request: Request) -> bool:
        """Whether vLLM has taken the popped request, and not skipped it."""
        return request.status not in STILL_WAITING

    def now_s(self) -> float:
        """A monotonic clock: the scheduler's `clock_s`, where who made it counts time himself."""
        return self._clock_s()

    @cached_property
    def _clock_s(self) -> Callable[[], float]:
        """Looked up when it is first asked, as it is set on a scheduler that is made."""
        clock_s: Callable[[], float] = getattr(self._scheduler, "clock_s", time.monotonic)
        return clock_s


class ContextQueue:
    """The part of vLLM's `RequestQueue` that an order of requests decides."""

    def __init__(
        self, order: ContextOrder[Request] | PriorityLevels[Request], watcher: Watcher[Request]
    ) -> None:
        self.order = order
        self._watcher = watcher

    def add_request(self, request: Request) -> None:
        """A new request arrived."""
        label = label_of(request)
        self._watcher.arrived(label is not None)
        self.order.add(request, label, request.block_hashes)

    def pop_request(self) -> Request:
        """Take the offered request, to admit or to skip it. Raises IndexError."""
        return self.order.pop()

    def peek_request(self) -> Request:
        """The request that is next; one that cannot run where none can. Raises IndexError."""
        return self.order.peek()

    def prepend_request(self, request: Request) -> None:
        """A running request was preempted: it goes first."""
        self.order.add_first(request)

    def prepend_requests(self, requests: Iterable[Request]) -> None:
        """Skipped requests come back, the last skipped first."""
        self.order.give_back(requests)

    def remove_requests(self, requests: Iterable[Request]) -> None:
        """Forget requests; some may be elsewhere."""
        self.order.remove(requests)

    def __bool__(self) -> bool:
        """Whether to look for one that can run: not a second time in a step that has found none."""
        return self.order.is_open

    def __len__(self) -> int:
        """How many wait. vLLM asks in each step, when it has admitted whom it could."""
        self.order.look_again()
        requests = len(self.order)
        self._watcher.looked(requests, self.order)
        return requests

    def __iter__(self) -> Iterator[Request]:
        return iter(self.order)


def make_queue(
    scheduler: Any, settings: OrderSettings, watcher: Watcher[Request], by_priority: bool
) -> ContextQueue:
    """The queue for one scheduler."""
    view, roots = SchedulerView(scheduler), Roots()

    def make_order() -> ContextOrder[Request]:
        return ContextOrder(settings, view, watcher, roots)

    if by_priority:
        levels = PriorityLevels(make_order, lambda request: request.priority)
        return ContextQueue(levels, watcher)
    return ContextQueue(make_order(), watcher)


_key_of = attrgetter("block_hash")


def label_of(request: Request) -> str | None:
    """The context a client named: `vllm_xargs.context`, else the session; None for neither."""
    params = request.sampling_params  # None of a pooling request, which takes no labels
    extra = params.extra_args if params is not None else None
    label = extra.get(LABEL) if extra else None
    if isinstance(label, str | int) and not isinstance(label, bool) and label != "":
        return f"context:{label}"
    return f"session:{request.session_id}" if request.session_id else None
