"""How much of the free list a choice reads."""

from collections.abc import Iterator

from fake_kv_engine import FakeKvEngine, FakeRequest, arrive, chain_of

from scheduler_plugin.order import ContextOrder
from scheduler_plugin.reuse import AHEAD_BLOCKS, SPARE_BLOCKS
from scheduler_plugin.settings import OrderSettings


class ReadEngine(FakeKvEngine):
    """A large cache of blocks that nobody waits for, before those that are cached; counts what is
    read of it."""

    read = 0

    def next_freed(self) -> Iterator[object]:
        for block in (*(f"old/{n}" for n in range(20_000)), *super().next_freed()):
            self.read += 1
            yield block


def test_a_long_prompt_that_is_cached_is_no_reason_to_read_far() -> None:
    """Its admission takes a few blocks; one seat is free at each step."""
    engine = ReadEngine(blocks=40_000, seats=1)
    order: ContextOrder[FakeRequest] = ContextOrder(OrderSettings("reuse"), engine)
    crowd = [
        FakeRequest(context, None, (*chain_of(context, 2_000), f"{context}+{n}"))
        for n in range(6)
        for context in "ab"
    ]
    arrive(order, *crowd)
    engine.residency = lambda request: 2_000
    for number in range(len(crowd)):
        engine.read = 0
        request = order.peek()
        assert order.pop() is request
        engine.admit(request)
        order.look_again()
        engine.finish(request)
        assert number < 2 or engine.read <= 2 * (AHEAD_BLOCKS + SPARE_BLOCKS)
