"""Requests that cannot run whatever there is room for: they keep their places and cost little."""

from collections import deque
from collections.abc import Sequence

import pytest
from fake_kv_engine import FakeKvEngine, FakeRequest, arrive, labelled, unlabelled
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler_plugin.engine_view import Nobody
from scheduler_plugin.levels import PriorityLevels
from scheduler_plugin.order import ContextOrder
from scheduler_plugin.settings import OrderSettings, Policy

Order = ContextOrder[FakeRequest] | PriorityLevels[FakeRequest]
STEP = st.tuples(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 3)), max_size=5),
    st.integers(0, 4),  # how many are admitted
    st.sets(st.integers(0, 8)),  # who of those that wait is blocked in this step
    st.sets(st.integers(0, 8), max_size=2),  # who gives up
)


class CountingEngine(FakeKvEngine):
    """Counts how often it was asked whether a request is blocked."""

    asked = 0

    def is_blocked(self, request: FakeRequest) -> bool:
        self.asked += 1
        return super().is_blocked(request)


def make_order(engine: FakeKvEngine, policy: Policy, has_levels: bool) -> Order:
    chosen = OrderSettings(policy)
    if has_levels:
        return PriorityLevels(lambda: ContextOrder(chosen, engine), lambda each: each.priority)
    return ContextOrder(chosen, engine)


def step(
    order: Order, engine: FakeKvEngine, most: int = 1000
) -> tuple[list[FakeRequest], list[FakeRequest]]:
    """A step of vLLM's: who was admitted, and who was shown in vain."""
    admitted: list[FakeRequest] = []
    skipped: deque[FakeRequest] = deque()
    while len(admitted) < most and order.is_open:
        request = order.peek()
        assert order.pop() is request
        if request in engine.blocked:
            skipped.appendleft(request)
        else:
            engine.admit(request)
            admitted.append(request)
    order.give_back(skipped)
    order.look_again()
    return admitted, list(skipped)


@pytest.mark.parametrize("has_levels", [False, True])
@given(st.lists(STEP, max_size=20))
@settings(deadline=None)
def test_first_come_first_served_of_those_that_can_run(
    has_levels: bool, steps: list[tuple[list[tuple[str, int]], int, set[int], set[int]]]
) -> None:
    """By priority where there are levels; whoever comes to be ready goes by his own arrival."""
    engine = FakeKvEngine()
    order = make_order(engine, "fcfs", has_levels)
    line: list[FakeRequest] = []
    for arrivals, most, places, leaving in [*steps, ([], 10_000, set(), set())]:
        came = [labelled(context, priority=priority) for context, priority in arrivals]
        engine.blocked = {each for place, each in enumerate(came) if place in places}
        arrive(order, *came)
        line += came
        if has_levels:
            line.sort(key=lambda request: request.priority)
        order.remove([line[place] for place in leaving if place < len(line)])
        line = [request for place, request in enumerate(line) if place not in leaving]
        engine.blocked = {line[place] for place in places if place < len(line)}
        admitted, _ = step(order, engine, most)
        assert admitted == [request for request in line if request not in engine.blocked][:most]
        line = [request for request in line if request not in admitted]
        assert list(order) == line
        assert len(order) == len(line)


@pytest.mark.parametrize("policy", ["reuse", "lpm", "prefix-group", "fcfs"])
@pytest.mark.parametrize("has_levels", [False, True])
def test_a_step_looks_at_each_once(policy: Policy, has_levels: bool) -> None:
    engine = CountingEngine()
    order = make_order(engine, policy, has_levels)
    crowd = [labelled(f"c{n % 7}", priority=n % 3) for n in range(300)]
    engine.blocked = set(crowd)
    arrive(order, *crowd)
    for _ in range(3):
        engine.asked = 0
        admitted, in_vain = step(order, engine)
        assert not admitted
        assert len(in_vain) == 1
        assert engine.asked <= len(crowd) + 1  # the one that was shown is looked at when it returns
    assert len(order) == len(crowd)
    engine.blocked = set()
    assert sorted(step(order, engine)[0], key=lambda each: each.number) == crowd


def test_nobody_is_looked_at_while_there_is_no_room() -> None:
    """vLLM asks whether somebody waits before it looks whether there is a seat."""
    engine = CountingEngine()
    order = make_order(engine, "reuse", has_levels=False)
    crowd = [labelled("a") for _ in range(50)]
    engine.blocked = set(crowd)
    arrive(order, *crowd)
    engine.asked = 0
    for _ in range(10):
        assert order.is_open
        order.look_again()
    assert engine.asked == 0


def test_who_comes_to_be_ready_goes_on_with_what_is_cached() -> None:
    """It was the oldest, but waits for nothing that is there; its context mates go with it."""
    engine = FakeKvEngine(blocks=18, seats=1)
    order = make_order(engine, "reuse", has_levels=False)
    hot = [unlabelled("hot") for _ in range(4)]
    engine.blocked = {hot[1]}
    arrive(order, hot[0], unlabelled("cold"), *hot[1:])
    served = [*step(order, engine, most=1)[0]]
    engine.finish(served[-1])
    engine.blocked = set()
    while len(order):
        served += step(order, engine, most=1)[0]
        engine.finish(served[-1])
    assert [each.context for each in served].count("hot") == 4
    assert served.index(hot[1]) < served.index(hot[2]) < served.index(hot[3])


def test_an_admitted_one_that_was_shown_as_blocked_is_counted() -> None:
    """Its grammar was ready just when vLLM looked."""
    engine = FakeKvEngine()
    order = make_order(engine, "reuse", has_levels=False)
    request = labelled("a")
    engine.blocked = {request}
    arrive(order, request)
    assert order.peek() is request
    engine.blocked = set()
    assert order.pop() is request
    engine.admit(request)
    assert len(order) == 0
    assert not order.is_open
    with pytest.raises(IndexError):
        order.peek()


def contexts(requests: Sequence[FakeRequest]) -> str:
    return "".join(request.context for request in requests)


def test_turns_by_label_hold_who_comes_to_be_ready() -> None:
    engine = FakeKvEngine()
    order = make_order(engine, "prefix-group", has_levels=False)
    requests = [labelled(context) for context in "abab"]
    engine.blocked = {requests[2]}
    arrive(order, *requests)
    assert contexts(step(order, engine, most=1)[0]) == "a"
    engine.blocked = set()
    assert contexts(step(order, engine)[0]) == "abb"


def test_what_overtook_one_that_gave_up_is_forgotten() -> None:
    """Of those that wait the oldest is told, though it is blocked and nobody can run yet."""
    told: list[int] = []

    class Told(Nobody):
        def admitted(self, request: object, waited_s: float, overtakes_max: int) -> None:
            told.append(overtakes_max)

    engine = FakeKvEngine()
    order = ContextOrder(OrderSettings("reuse"), engine, Told())
    first, second = labelled("a"), labelled("b")
    engine.blocked = {first, second}
    arrive(order, first, *(labelled("c") for _ in range(30)))
    step(order, engine)
    arrive(order, second)
    order.remove([first])
    arrive(order, *(labelled("c") for _ in range(3)))
    step(order, engine)
    assert len(order) == 1
    assert told[-1] <= 3
