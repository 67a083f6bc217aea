"""CPU time per admission with a long queue, and of a step in which none of it can run: the plugin
against stock, on the real scheduler.

This measures the machine it runs on; compare policies within one call only.
"""

import gc
import math
import random
import time
from dataclasses import dataclass
from statistics import median
from typing import Any

from ask import Ask, make_request
from engine_shape import EngineShape, build_scheduler
from scheduler_rows import AdmissionRow
from scheduler_virtual_batches import POLICIES, shape_of
from virtual_load import tokens
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request

WAITING = 10_000
CONTEXTS = (1, 10, 100, 1_000, 10_000)
ADMISSIONS = 512
REPEATS = 5
CONTEXT_TOKENS = 256
TOKEN = 7
SCANS = 4
"""Steps of a queue of which no request can run: the first finds that out, the others know."""


@dataclass(frozen=True, slots=True)
class _Cost:
    admission_us: float
    arrival_us: float
    scan_ms: float


def admission_rows(repeats: int) -> list[AdmissionRow]:
    """All policies at each number of contexts, begun with another one in each repeat."""
    rows = []
    for count in CONTEXTS:
        costs: dict[str, list[_Cost]] = {policy: [] for policy in POLICIES}
        for repeat in range(repeats):
            names = list(POLICIES)
            for name in names[repeat % len(names) :] + names[: repeat % len(names)]:
                costs[name].append(_measure(POLICIES[name], count))
        rows += [_row(name, count, costs) for name in POLICIES]
    return rows


def _row(policy: str, contexts: int, costs: dict[str, list[_Cost]]) -> AdmissionRow:
    pairs = list(zip(costs[policy], costs["stock"], strict=True))
    return AdmissionRow(
        policy=policy,
        contexts=contexts,
        waiting=WAITING,
        admission_us=median(cost.admission_us for cost in costs[policy]),
        admission_ratio=median(c.admission_us / s.admission_us for c, s in pairs),
        arrival_us=median(cost.arrival_us for cost in costs[policy]),
        arrival_ratio=median(c.arrival_us / s.arrival_us for c, s in pairs),
        scan_ms=median(cost.scan_ms for cost in costs[policy]),
        scan_ratio=median(c.scan_ms / s.scan_ms for c, s in pairs),
    )


def _requests(contexts: int, count: int, grammar_s: float | None = None) -> list[Request]:
    """Requests of two full blocks and a question, giving one token, in a random order."""
    dice = random.Random(contexts)
    order = [number % contexts for number in range(count)]
    dice.shuffle(order)
    return [
        make_request(
            Ask(
                f"r{number}",
                f"c{context}",
                tokens(CONTEXT_TOKENS, "cost", context) + tokens(8, "cost-end", number % 500),
                output_tokens=1,
                grammar_s=grammar_s,
            ),
            128,
        )
        for number, context in enumerate(order)
    ]


def _measure(plugin: dict[str, Any] | None, contexts: int) -> _Cost:
    requests = _requests(contexts, WAITING + ADMISSIONS)
    ready = _scheduler(plugin, requests[:WAITING])
    unready = _scheduler(plugin, _requests(contexts, WAITING, grammar_s=math.inf))
    gc.collect()
    gc.disable()
    try:
        return _Cost(*_serve(ready, requests[WAITING:]), _scan_ms(unready))
    finally:
        gc.enable()


def _scheduler(plugin: dict[str, Any] | None, waiting: list[Request]) -> Scheduler:
    shape = EngineShape(usable_blocks=200, max_num_batched_tokens=8192)
    scheduler = build_scheduler(shape_of(shape, plugin))
    for request in waiting:
        scheduler.add_request(request)
    return scheduler


def _scan_ms(scheduler: Scheduler) -> float:
    """A step in which no grammar is ready, on average."""
    began_ns = time.process_time_ns()
    for _ in range(SCANS):
        assert not scheduler.schedule().num_scheduled_tokens
    return (time.process_time_ns() - began_ns) / SCANS / 1e6


def _serve(scheduler: Scheduler, coming: list[Request]) -> tuple[float, float]:
    """Admit as many as come, so that the queue keeps its length: us of an admission, of an
    arrival."""
    admission_ns = arrival_ns = admitted = added = 0
    while admitted < ADMISSIONS:
        began_ns = time.process_time_ns()
        output = scheduler.schedule()
        scheduler.update_from_output(output, _tokens(output.num_scheduled_tokens, scheduler))
        admission_ns += time.process_time_ns() - began_ns
        new = len(output.scheduled_new_reqs)
        admitted += new
        batch = coming[added : added + new]
        began_ns = time.process_time_ns()
        for request in batch:
            scheduler.add_request(request)
        arrival_ns += time.process_time_ns() - began_ns
        added += len(batch)
    return admission_ns / admitted / 1000, arrival_ns / max(added, 1) / 1000


def _tokens(scheduled: dict[str, int], scheduler: Scheduler) -> ModelRunnerOutput:
    names = list(scheduled)
    done = [not scheduler.requests[name].is_prefill_chunk for name in names]
    return ModelRunnerOutput(
        req_ids=names,
        req_id_to_index={name: place for place, name in enumerate(names)},
        sampled_token_ids=[[TOKEN] if is_done else [] for is_done in done],
    )
