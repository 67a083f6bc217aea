"""What must hold after every step, whatever the order of admission."""

from collections import defaultdict

from virtual_engine import VirtualEngine
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.request import Request, RequestStatus


def nothing_lost(engine: VirtualEngine) -> None:
    """Each unfinished request is in exactly one place, and the queue's views of itself agree."""
    scheduler = engine.scheduler
    waiting = list(scheduler.waiting)
    assert len(waiting) == len(scheduler.waiting)
    assert bool(scheduler.waiting) is bool(waiting)
    held = waiting + list(scheduler.kv_holding_waiting) + list(scheduler.running)
    names = [request.request_id for request in held]
    assert len(names) == len(set(names)), "a request is in two places"
    unfinished = {n for n, r in scheduler.requests.items() if not r.is_finished()}
    assert set(names) == unfinished


def work_conserving(engine: VirtualEngine, output: SchedulerOutput) -> None:
    """Admission stopped only for a reason: no seat, no token, no room, or nobody ready.

    Room is judged for the request the queue offers, as vLLM judges it for its own head.
    """
    scheduler, shape = engine.scheduler, engine.shape
    if output.preempted_req_ids or len(scheduler.running) >= shape.max_num_seqs:
        return
    if output.total_num_scheduled_tokens >= shape.max_num_batched_tokens:
        return
    # A preempted request whose old output is still in flight is passed over by vLLM.
    ready = [r for r in scheduler.waiting if r not in scheduler.deferred_waiting]
    if not ready or len(scheduler.kv_holding_waiting):
        return
    offered = scheduler.waiting.peek_request()
    if offered in scheduler.deferred_waiting:
        return
    assert not _fits(engine, offered), f"{offered.request_id} fits and was not admitted"


def _fits(engine: VirtualEngine, request: Request) -> bool:
    """Whether vLLM would find blocks for all of its tokens; read-only."""
    manager = engine.scheduler.kv_cache_manager
    hit, hit_tokens, _ = manager.get_computed_blocks(request)
    size = engine.shape.block_size
    needed = -(-request.num_tokens // size) - hit_tokens // size
    evictable = sum(block.ref_cnt == 0 for block in hit.blocks[0])
    free: int = manager.block_pool.get_num_free_blocks()
    return needed + evictable <= free


class FifoInContext:
    """Call after each step: nobody is admitted before an older ready one of its own context."""

    def __init__(self) -> None:
        self._seen = 0

    def __call__(self, engine: VirtualEngine, output: SchedulerOutput) -> None:
        ledger = engine.ledger
        admitted = {a.name for a in ledger.admissions[self._seen :] if not a.again}
        self._seen = len(ledger.admissions)
        place = {ask.name: number for number, ask in enumerate(ledger.arrived)}
        ask_of = {ask.name: ask for ask in ledger.arrived}
        oldest: dict[object, int] = defaultdict(lambda: len(place))
        for request in engine.scheduler.waiting:
            if request.status is RequestStatus.WAITING and not self._passed_over(engine, request):
                ask = ask_of[request.request_id]
                rank = (ask.context, ask.priority)
                oldest[rank] = min(oldest[rank], place[ask.name])
        for name in admitted:
            ask = ask_of[name]
            assert place[name] < oldest[ask.context, ask.priority], f"{name} came before its turn"

    def _passed_over(self, engine: VirtualEngine, request: Request) -> bool:
        return request in engine.scheduler.deferred_waiting


def all_done(engine: VirtualEngine, names: set[str]) -> None:
    """Everyone in `names` finished, nobody else did, and the engine is as empty as at start."""
    assert set(engine.ledger.finished_s) == names
    scheduler = engine.scheduler
    assert not scheduler.requests
    assert not len(scheduler.waiting)
    assert not list(scheduler.waiting)
    assert not len(scheduler.kv_holding_waiting)
    assert not scheduler.running
    assert engine.leaked_blocks == 0
