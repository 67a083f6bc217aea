"""Priority first, then context."""

from collections import deque

import pytest
from fake_kv_engine import FakeKvEngine, FakeRequest, arrive, labelled, schedule
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler_plugin.levels import KEPT_LEVELS, PriorityLevels
from scheduler_plugin.order import ContextOrder
from scheduler_plugin.roots import Roots
from scheduler_plugin.settings import OrderSettings

PRIORITIES = st.integers(-1, 2)
STEP = st.tuples(
    st.lists(st.tuples(st.sampled_from("abc"), PRIORITIES), max_size=5),
    st.integers(0, 4),  # how many are admitted
    st.sets(st.integers(0, 8)),  # which waiting requests cannot run in this step
    st.sets(st.integers(0, 8), max_size=2),  # which give up
    st.booleans(),  # whether the last one admitted is preempted
)


def make_levels(
    engine: FakeKvEngine, policy: str = "lpm", quantum: int = 32
) -> PriorityLevels[FakeRequest]:
    chosen, roots = OrderSettings(policy, quantum=quantum), Roots()  # type: ignore[arg-type]
    return PriorityLevels(
        lambda: ContextOrder(chosen, engine, roots=roots), lambda request: request.priority
    )


@given(st.lists(STEP, max_size=20))
@settings(deadline=None)
def test_with_fcfs_it_is_a_stable_sort_by_priority(
    steps: list[tuple[list[tuple[str, int]], int, set[int], set[int], bool]],
) -> None:
    engine = FakeKvEngine()
    levels = make_levels(engine, "fcfs")
    line: list[FakeRequest] = []
    for arrivals, most, places, leaving, preempts in [*steps, ([], 10_000, set(), set(), False)]:
        came = [labelled(context, priority=priority) for context, priority in arrivals]
        arrive(levels, *came)
        line = sorted(line + came, key=lambda request: request.priority)
        gone = [line[place] for place in leaving if place < len(line)]
        levels.remove(gone)
        line = [request for request in line if request not in gone]
        blocked = {line[place] for place in places if place < len(line)}
        expected = [request for request in line if request not in blocked][:most]
        assert schedule(levels, engine, most, blocked) == expected
        line = [request for request in line if request not in expected]
        if preempts and expected:
            engine.send_back(expected[-1])
            levels.add_first(expected[-1])
            line = sorted([expected[-1], *line], key=lambda request: request.priority)
        assert len(levels) == len(line)
        assert list(levels) == line
    assert not line


def test_contexts_have_their_turns_within_a_priority() -> None:
    engine = FakeKvEngine()
    levels = make_levels(engine, "prefix-group")
    arrive(levels, *(labelled(context, priority=1) for context in "abab"))
    arrive(levels, *(labelled(context, priority=0) for context in "cdc"))
    assert levels.contexts == 4
    assert [request.context for request in schedule(levels, engine)] == list("ccdaabb")


def test_what_one_priority_computed_is_found_by_another() -> None:
    engine = FakeKvEngine()
    levels = make_levels(engine)
    arrive(levels, labelled("x", priority=0))
    schedule(levels, engine)
    arrive(levels, *(labelled(context, priority=1) for context in "ax"))
    assert levels.peek().context == "x"


def test_a_more_urgent_newcomer_between_peek_and_pop_changes_nothing() -> None:
    engine = FakeKvEngine()
    levels = make_levels(engine)
    later, urgent = labelled("a", priority=5), labelled("b", priority=0)
    arrive(levels, later)
    assert levels.peek() is later
    arrive(levels, urgent)
    assert levels.pop() is later
    engine.admit(later)
    assert levels.pop() is urgent


def test_one_that_returns_before_anyone_looked_was_admitted() -> None:
    engine = FakeKvEngine()
    levels = make_levels(engine)
    request = labelled("a", priority=1)
    arrive(levels, request)
    engine.admit(levels.pop())
    engine.send_back(request)
    levels.add_first(request)
    assert list(levels) == [request]
    assert schedule(levels, engine) == [request]


def test_levels_of_priorities_that_never_come_again_are_forgotten() -> None:
    engine = FakeKvEngine()
    levels = make_levels(engine)
    for deadline in range(500):
        came = [labelled("a", priority=deadline), labelled("b", priority=deadline + 10_000)]
        arrive(levels, *came)
        schedule(levels, engine, 1, came[deadline % 3 :][:1])
        levels.remove(came[1:])
    schedule(levels, engine)
    assert not len(levels)
    assert len(levels._orders) <= KEPT_LEVELS + 1
    assert len(levels._listed) <= KEPT_LEVELS + 1


def test_a_level_with_a_skipped_request_is_kept() -> None:
    engine = FakeKvEngine()
    levels = make_levels(engine)
    urgent = labelled("a", priority=0)
    arrive(levels, urgent, *(labelled("b", priority=level) for level in range(1, 40)))
    assert levels.pop() is urgent
    assert levels.peek().priority == 1
    levels.give_back(deque([urgent]))
    assert levels.contexts == 40
    assert levels.pop() is urgent


def test_what_became_of_a_popped_request_is_asked_at_the_next_call() -> None:
    engine = FakeKvEngine()
    levels = make_levels(engine)
    urgent, later = labelled("a", priority=0), labelled("b", priority=1)
    arrive(levels, urgent, later)
    engine.admit(levels.pop())
    assert len(levels) == 1
    engine.send_back(urgent)  # it waits elsewhere now
    assert levels._orders[0].is_idle


def test_nobody_waiting_is_an_index_error() -> None:
    levels = make_levels(FakeKvEngine())
    with pytest.raises(IndexError):
        levels.peek()
    with pytest.raises(IndexError):
        levels.pop()
