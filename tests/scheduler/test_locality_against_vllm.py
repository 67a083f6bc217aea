"""The predicted hits against vLLM's own scheduler and KV cache manager."""

from collections.abc import Sequence
from dataclasses import replace
from random import Random

import pytest
from ask import Ask
from engine_shape import EngineShape
from virtual_engine import VirtualEngine
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.request import Request

from loadgen.locality.lru_stack import LruStack
from loadgen.locality.replay import CacheReplay
from loadgen.locality.trace import BlockNames, Trace

Sending = tuple[tuple[int, ...], int]
"""A prompt's token ids and how many tokens of reply it wants."""


def workload(rng: Random, block_size: int) -> list[Sending]:
    """Few contexts, questions of all lengths to the block's edge, repeats."""
    lengths = [rng.randrange(1, 12 * block_size) for _ in range(rng.randrange(1, 7))]
    contexts = [tuple(rng.randrange(5, 1000) for _ in range(length)) for length in lengths]
    sent: list[Sending] = []
    for _ in range(rng.randrange(10, 60)):
        if sent and rng.random() < 0.25:
            sent.append(rng.choice(sent))
            continue
        context = rng.choice(contexts)
        edge = block_size - len(context) % block_size
        length = rng.choice([0, 1, edge, rng.randrange(3 * block_size)])
        question = tuple(rng.randrange(1000, 2000) for _ in range(length))
        sent.append((context + question, rng.randrange(1, 2 * block_size)))
    return sent


def trace_of(sent: Sequence[Sending], block_size: int, users: int = 1) -> Trace:
    names = BlockNames(block_size)
    return Trace(tuple(names.chain(prompt, reply) for prompt, reply in sent), block_size, users)


class Clients:
    """`users` clients of the virtual engine; each sends the next request after its last reply."""

    def __init__(self, sent: Sequence[Sending], shape: EngineShape, users: int) -> None:
        self.cached: dict[str, int] = {}
        self._engine = VirtualEngine(shape, on_step=self._note)
        self._coming = iter(enumerate(sent))
        self._users = users

    def serve(self) -> list[int]:
        """Cached tokens of each request, in the order sent."""
        under_way = [request for _ in range(self._users) if (request := self._send())]
        while self._engine.busy:
            self._engine.step()
            left = [request for request in under_way if not request.is_finished()]
            ended = len(under_way) - len(left)
            under_way = left + [request for _ in range(ended) if (request := self._send())]
        return [self.cached[name] for name in sorted(self.cached, key=int)]

    def _send(self) -> Request | None:
        coming = next(self._coming, None)
        if coming is None:
            return None
        place, (prompt, reply) = coming
        return self._engine.submit(Ask(str(place), "context", prompt, output_tokens=reply))

    def _note(self, _: VirtualEngine, output: SchedulerOutput) -> None:
        for request in output.scheduled_new_reqs:
            self.cached[request.req_id] = request.num_computed_tokens


def sizes(rng: Random, least_blocks: int) -> set[int]:
    """Tight, a little more, and ample."""
    return {least_blocks, least_blocks + 1 + rng.randrange(12), least_blocks + rng.randrange(200)}


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("seed", [0, 1, 2, 178, 334, 340])
def test_one_after_the_other_every_request_hits_what_was_predicted(
    seed: int, asynchronous: bool
) -> None:
    """In the last three seeds it matters which of two copies of a block is taken."""
    rng = Random(seed)
    block_size = rng.choice([4, 8, 16])
    sent = workload(rng, block_size)
    trace = trace_of(sent, block_size)
    stack = LruStack(trace)
    for blocks in sizes(rng, trace.least_blocks):
        shape = EngineShape(blocks, block_size, async_scheduling=asynchronous)
        real = Clients(sent, shape, users=1).serve()
        assert CacheReplay(trace, blocks).run().cached == real
        assert abs(stack.cached_tokens(blocks) - sum(real)) <= 0.01 * trace.prompt_tokens


@pytest.mark.parametrize("seed", [3, 22, 185])
def test_side_by_side_in_a_tight_cache_requests_wait_and_are_set_back_as_in_vllm(seed: int) -> None:
    """In the last two seeds it matters that nobody is admitted in a step that sets one back."""
    rng = Random(seed)
    block_size = rng.choice([4, 8, 16])
    sent = workload(rng, block_size)
    trace = trace_of(sent, block_size, users=8)
    blocks = trace.least_blocks + 2
    real = Clients(sent, EngineShape(blocks, block_size), users=8).serve()
    assert CacheReplay(trace, blocks).run().cached_tokens == sum(real)


@pytest.mark.parametrize("users", [2, 16])
def test_side_by_side_the_error_is_within_three_points(users: int) -> None:
    """vLLM schedules ahead of replies, which the replay does not: see docs/guides/cache-size.md."""
    rng = Random(users)
    sent = [each for _ in range(2) for each in workload(rng, 16)]
    trace = trace_of(sent, 16, users)
    for blocks in sizes(rng, trace.least_blocks):
        for asynchronous in (False, True):
            shape = EngineShape(blocks, 16, async_scheduling=asynchronous)
            real = sum(Clients(sent, shape, users).serve())
            error = abs(CacheReplay(trace, blocks).run().cached_tokens - real) / trace.prompt_tokens
            assert error <= 0.03


def test_a_prompt_longer_than_a_step_hits_the_same() -> None:
    rng = Random(0)
    sent = workload(rng, 16)
    trace = trace_of(sent, 16, users=3)
    shape = EngineShape(trace.least_blocks + 20, 16, max_num_seqs=16, max_num_batched_tokens=64)
    real = Clients(sent, shape, users=3).serve()
    assert sum(
        CacheReplay(replace(trace, step_tokens=64), trace.least_blocks + 20).run().cached
    ) == sum(real)
