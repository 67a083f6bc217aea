"""A vLLM engine with everything but the model: the real scheduler, and a clock that is counted.

One step is schedule(), a made-up token for each request whose prompt is done, and
update_from_output(); with async scheduling the next step is scheduled before the first one's
output is known, as EngineCore does with its batch queue.
"""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ask import Ask, make_request
from engine_shape import EngineShape, build_scheduler
from ledger import Admission, Ledger, Step
from step_cost import StepCost, StepWork
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.engine import EngineCoreOutput
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus

TOKEN = 7
STEPS_WITHOUT_TOKENS = 10_000


class ReadyGrammar:
    """A grammar that accepts every token."""

    def accept_tokens(self, request_id: str, tokens: list[int]) -> bool:
        return True

    def is_terminated(self) -> bool:
        return False


@dataclass(frozen=True, slots=True)
class Flight:
    """A scheduled step whose output is not processed yet."""

    output: SchedulerOutput
    sampling: frozenset[str]
    ends_s: float


class VirtualEngine:
    """Runs requests through the scheduler of `shape`; `ledger` says what happened.

    `on_step` is called after each schedule(), before its output is processed.
    """

    def __init__(
        self,
        shape: EngineShape,
        cost: StepCost | None = None,
        on_step: "Callable[[VirtualEngine, SchedulerOutput], None] | None" = None,
    ) -> None:
        self.shape = shape
        self.scheduler = build_scheduler(shape)
        self.ledger = Ledger()
        self.now_s = 0.0
        self._cost = cost or StepCost()
        self._on_step = on_step
        self._depth = 2 if shape.async_scheduling else 1
        self._flights: deque[Flight] = deque()
        self._free_at_s = 0.0
        self._grammars: dict[str, tuple[float, Request]] = {}
        self._loaded: set[str] = set()
        self._asks: dict[str, Ask] = {}
        self._unadmitted: dict[str, Ask] = {}

    def submit(self, ask: Ask) -> Request:
        """Queue one request now."""
        request = make_request(ask, self.shape.block_size)
        self.ledger.arrived.append(ask)
        self.ledger.waiting_ahead[ask.name] = len(self._unadmitted)
        older = {other.context for other in self._unadmitted.values()}
        self.ledger.contexts_ahead[ask.name] = len(older - {ask.context})
        self._asks[ask.name] = self._unadmitted[ask.name] = ask
        if ask.grammar_s is not None:
            self._grammars[ask.name] = (self.now_s + ask.grammar_s, request)
        self.scheduler.add_request(request)
        return request

    def abort(self, *names: str) -> None:
        """What a client that goes away does; names nobody knows are allowed."""
        for name in names:
            self._unadmitted.pop(name, None)
            self._grammars.pop(name, None)
        self.scheduler.finish_requests(names, RequestStatus.FINISHED_ABORTED)

    def run(self, asks: Iterable[Ask] = ()) -> Ledger:
        """Serve all of `asks` at their arrival times, to the end."""
        coming = deque(sorted(asks, key=lambda ask: ask.arrival_s))
        idle_steps = 0
        while coming or self.busy:
            if not self.busy:
                self.now_s = max(self.now_s, coming[0].arrival_s)
            while coming and coming[0].arrival_s <= self.now_s:
                self.submit(coming.popleft())
            idle_steps = 0 if self.step() else idle_steps + 1
            if idle_steps > STEPS_WITHOUT_TOKENS:
                raise AssertionError(f"no token in {idle_steps} steps: {self._stuck()}")
        return self.ledger

    @property
    def busy(self) -> bool:
        """Whether anything is queued, running or in flight."""
        return bool(self._flights) or self.scheduler.has_unfinished_requests()

    @property
    def leaked_blocks(self) -> int:
        """Blocks still held; 0 once everything is finished."""
        free: int = self.scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
        return self.shape.usable_blocks - free

    def step(self) -> bool:
        """Schedule until the pipeline is full, then process one output; False without tokens."""
        while self.scheduler.has_unfinished_requests() and len(self._flights) < self._depth:
            flight = self._schedule()
            self._flights.append(flight)
            if not flight.output.total_num_scheduled_tokens:
                break
        if not self._flights:
            return False
        return self._land(self._flights.popleft())

    def _schedule(self) -> Flight:
        self._ready_grammars()
        output = self.scheduler.schedule()
        work, sampling = self._account(output)
        if self._on_step is not None:
            self._on_step(self, output)
        self._free_at_s = max(self._free_at_s, self.now_s) + self._cost.seconds(work)
        return Flight(output, frozenset(sampling), self._free_at_s)

    def _account(self, output: SchedulerOutput) -> tuple[StepWork, set[str]]:
        """Count one scheduled step; which of its requests give a token."""
        resumed = set(output.scheduled_cached_reqs.resumed_req_ids)
        admitted = resumed | {request.req_id for request in output.scheduled_new_reqs}
        prefill, attended, decodes, sampling = 0, 0.0, 0, set()
        for name, count in output.num_scheduled_tokens.items():
            request = self.scheduler.requests[name]
            end, start = request.num_computed_tokens, request.num_computed_tokens - count
            prompt = max(0, min(end, request.num_prompt_tokens) - start)
            if not request.is_prefill_chunk:
                sampling.add(name)
            if count == 1 and start >= request.num_prompt_tokens:
                decodes += 1
            else:
                prefill += count
                attended += count * (start + count / 2)
                self.ledger.replayed_tokens += count - prompt
            self.ledger.computed_tokens += prompt
            if name in admitted:
                self._admit(name, name in resumed)
        self.ledger.decode_tokens += decodes
        preempted = frozenset(output.preempted_req_ids or ())
        self.ledger.steps.append(Step(tuple(output.num_scheduled_tokens.items()), preempted))
        return StepWork(prefill, attended, decodes), sampling

    def _admit(self, name: str, again: bool) -> None:
        self._unadmitted.pop(name, None)
        admission = Admission(name, len(self.ledger.steps), self.now_s, again)
        self.ledger.admissions.append(admission)

    def _land(self, flight: Flight) -> bool:
        self.now_s = max(self.now_s, flight.ends_s)
        names = list(flight.output.num_scheduled_tokens)
        result = ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: place for place, name in enumerate(names)},
            sampled_token_ids=[[TOKEN] if name in flight.sampling else [] for name in names],
            kv_connector_output=self._transfers(),
        )
        for reply in self.scheduler.update_from_output(flight.output, result).values():
            for piece in reply.outputs:
                self._receive(piece)
        return bool(names)

    def _receive(self, piece: EngineCoreOutput) -> None:
        name: str = piece.request_id
        ledger, stats = self.ledger, piece.prefill_stats
        count = len(piece.new_token_ids)
        ledger.output_tokens[name] = ledger.output_tokens.get(name, 0) + count
        ledger.first_token_s.setdefault(name, self.now_s)
        if stats is not None:
            ledger.reported_tokens += stats.num_computed_tokens
        if piece.finish_reason is not None:
            ledger.finished_s[name] = self.now_s

    def _transfers(self) -> KVConnectorOutput | None:
        """Background loads end one step after they began."""
        connector = self.scheduler.connector
        if connector is None:
            return None
        done, self._loaded = self._loaded, set(connector.take_loads())
        failed = done if connector.loads_fail else set()
        return KVConnectorOutput(finished_recving=done, failed_recving=failed) if done else None

    def _ready_grammars(self) -> None:
        for name, (ready_s, request) in list(self._grammars.items()):
            if ready_s <= self.now_s:
                request.structured_output_request.grammar = ReadyGrammar()
                del self._grammars[name]

    def _stuck(self) -> str:
        running, waiting = self.scheduler.get_request_counts()
        return f"{running} running, {waiting} waiting at {self.now_s:.3f} s"
