"""The virtual engine for long simulations: replies under way cost nothing until they need a block.

A request that decodes takes one token in each step. vLLM's scheduler looks at each of them in each
step all the same. Here they leave its list of running requests, count against its limits, and come
back to it where one of them finds no block, so that vLLM says who is preempted. Blocks are taken
in the step in which vLLM would take them; others find the full blocks of a reply once it has ended,
or where a preempted request looks for its own.
"""

import heapq
from array import array
from dataclasses import dataclass

from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.request import Request, RequestStatus

from loadgen.twin.engine import TOKEN, EngineShape, StepInFlight, VirtualEngine
from loadgen.twin.ledger import Step
from loadgen.twin.step_time import StepTime, StepWork


@dataclass(slots=True)
class _Decoding:
    """A reply under way since a step, `first`, before which it had `known` tokens in all."""

    request: Request
    first: int
    known: int
    last: int


class LeanEngine(VirtualEngine):
    """Keeps counters, and of requests those under way; else as the engine that it is."""

    def __init__(self, shape: EngineShape, cost: StepTime | None = None) -> None:
        super().__init__(shape, cost, is_whole=False)
        self.scheduler.log_stats = False
        self._decoding: dict[str, _Decoding] = {}
        self._ends_s = array("d")
        self._blocks_due: list[tuple[int, str]] = []
        self._ends_due: list[tuple[int, str]] = []
        self._read = 0

    @staticmethod
    def serves(shape: EngineShape) -> bool:
        """Whether engines of this shape decode so: one step at a time, first come, no tier."""
        if shape.async_scheduling or shape.tier is not None or shape.plugin is not None:
            return False
        return shape.vllm_policy == "fcfs"

    @property
    def busy(self) -> bool:
        """Whether anything is queued, running or in flight."""
        return bool(self._decoding) or super().busy

    def abort(self, *names: str) -> None:
        """What a client that goes away does."""
        self._show_all()
        super().abort(*names)

    def step(self) -> bool:
        """One step of all; False without tokens."""
        self.finished = []
        if not self.busy:
            return False
        if not self._decoding or not self._take_blocks():
            self._show_all()
            self._ends_s.append(0.0)
            is_some = super().step()
            self._ends_s[-1] = self.now_s
        else:
            is_some = self._step_beside()
        self._hide()
        return is_some

    def _step_beside(self) -> bool:
        """A step in which vLLM schedules what is not decoding."""
        scheduler, count = self.scheduler, len(self._decoding)
        output: SchedulerOutput | None = None
        work, sampling = StepWork(), set[str]()
        if scheduler.has_unfinished_requests():
            output = self._scheduled_beside(count)
            work, sampling = self._account(output)
        work = StepWork(
            work.prefill_tokens,
            work.attended,
            work.decodes + count,
            work.context_tokens + self._read,
        )
        self.ledger.decode_tokens += count
        self._read += count
        begins_s = max(self._free_at_s, self.now_s)
        self._free_at_s = begins_s + self._cost.seconds(work)
        self._ends_s.append(self._free_at_s)
        self._note(output, count, work, begins_s)
        if output is None:
            self.now_s = max(self.now_s, self._free_at_s)
        else:
            self._land(StepInFlight(output, frozenset(sampling), self._free_at_s))
        self._end_replies()
        return True

    def _scheduled_beside(self, count: int) -> SchedulerOutput:
        """By limits that are less by those who decode."""
        scheduler, waiting = self.scheduler, self.scheduler.waiting
        if waiting and waiting.peek_request().status == RequestStatus.PREEMPTED:
            for own in self._decoding.values():
                self._sync(own)
                scheduler.kv_cache_manager.cache_blocks(own.request, own.request.num_tokens)
        tokens, active = scheduler.max_num_scheduled_tokens, scheduler.max_num_active_reqs
        scheduler.max_num_scheduled_tokens, scheduler.max_num_active_reqs = (
            tokens - count,
            active - count,
        )
        try:
            return scheduler.schedule()
        finally:
            scheduler.max_num_scheduled_tokens = tokens
            scheduler.max_num_active_reqs = active

    def _note(
        self, output: SchedulerOutput | None, count: int, work: StepWork, begins_s: float
    ) -> None:
        ledger = self.ledger
        if output is not None:
            scheduled = tuple(output.num_scheduled_tokens.items())
            preempted = frozenset(output.preempted_req_ids or ())
            ledger.add_step(Step(scheduled, preempted, work, begins_s, self._free_at_s))
            count += len(scheduled)
        ledger.peak_running = max(ledger.peak_running, count)

    def _hide(self) -> None:
        """Requests that have a token leave the scheduler's list."""
        stay = []
        for request in self.scheduler.running:
            if request.is_prefill_chunk or not request.num_output_tokens:
                stay.append(request)
            else:
                self._hide_one(request)
        self.scheduler.running = stay

    def _hide_one(self, request: Request) -> None:
        first, known = len(self._ends_s), request.num_tokens
        room = self.shape.max_model_len - known
        left = min(request.max_tokens - request.num_output_tokens, room)
        own = _Decoding(request, first, known, first + left - 1)
        self._decoding[request.request_id] = own
        self._read += known
        heapq.heappush(self._ends_due, (own.last, request.request_id))
        self._plan_block(own, first)

    def _plan_block(self, own: _Decoding, after: int) -> None:
        """In step `first` + n the token at position `known` + n - 1 is computed; at the first of a
        block it needs one."""
        computed = own.known + after - own.first - 1
        due = after + -computed % self.shape.block_size
        if due <= own.last:
            heapq.heappush(self._blocks_due, (due, own.request.request_id))

    def _take_blocks(self) -> bool:
        """Of those whose next token begins one; False where there is none."""
        now, manager = len(self._ends_s), self.scheduler.kv_cache_manager
        while self._blocks_due and self._blocks_due[0][0] <= now:
            due, name = heapq.heappop(self._blocks_due)
            own = self._decoding.get(name)
            if own is None or due < own.first:
                continue
            if not manager.block_pool.get_num_free_blocks():
                return False
            tokens = own.known + now - own.first
            manager.coordinator.allocate_new_blocks(name, tokens, tokens)
            self._plan_block(own, now + 1)
        return True

    def _sync(self, own: _Decoding) -> None:
        """Have vLLM's request as it would be before the step that comes."""
        request = own.request
        missing = own.known + len(self._ends_s) - own.first - request.num_tokens
        if missing > 0:
            request.append_output_token_ids([TOKEN] * missing)
        request.num_computed_tokens = request.num_tokens - 1
        self.scheduler.kv_cache_manager.cache_blocks(request, request.num_computed_tokens)

    def _show_all(self) -> None:
        """All are the scheduler's again, before those that it has."""
        shown = []
        for own in self._decoding.values():
            self._sync(own)
            self._tell_tokens(own)
            shown.append(own.request)
        self.scheduler.running = shown + self.scheduler.running
        self._decoding, self._read = {}, 0
        self._blocks_due, self._ends_due = [], []

    def _tell_tokens(self, own: _Decoding) -> None:
        self.ledger.add_tokens(own.request.request_id, self._ends_s[own.first :])

    def _end_replies(self) -> None:
        """Those whose last token came with this step."""
        step = len(self._ends_s) - 1
        while self._ends_due and self._ends_due[0][0] <= step:
            _, name = heapq.heappop(self._ends_due)
            own = self._decoding.pop(name)
            self._sync(own)
            self._tell_tokens(own)
            self._read -= own.request.num_tokens
            self.scheduler.finish_requests([name], RequestStatus.FINISHED_LENGTH_CAPPED)
            self.ledger.finished_s[name] = self.now_s
            self.finished.append(name)
