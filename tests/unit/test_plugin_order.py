"""The order of waiting requests, case by case: turns, skips, preemption, removal, cost."""

import gc
import weakref
from collections import deque
from dataclasses import replace
from itertools import count

import pytest
from fake_kv_engine import (
    FakeKvEngine,
    FakeRequest,
    arrive,
    labelled,
    schedule,
    short,
    unlabelled,
)

from scheduler_plugin.order import RECENT, ContextOrder
from scheduler_plugin.roots import Roots
from scheduler_plugin.settings import OrderSettings


class Journal:
    """Writes down what an order tells its observer."""

    def __init__(self) -> None:
        self.reasons: list[str] = []
        self.turn_lengths: list[int] = []
        self.waits_s: list[float] = []
        self.overtakes: list[int] = []

    def chosen(self, seconds: float) -> None:
        assert seconds >= 0

    def turn_began(self, reason: str) -> None:
        self.reasons.append(reason)

    def turn_ended(self, admitted: int) -> None:
        self.turn_lengths.append(admitted)

    def admitted(self, request: FakeRequest, waited_s: float, overtakes_max: int) -> None:
        self.waits_s.append(waited_s)
        self.overtakes.append(overtakes_max)


class Bench:
    """An order, the engine it looks into, and the journal."""

    def __init__(self, chosen: OrderSettings) -> None:
        self.engine = FakeKvEngine()
        self.journal = Journal()
        self.order: ContextOrder[FakeRequest] = ContextOrder(chosen, self.engine, self.journal)

    def arrive(self, *requests: FakeRequest) -> list[FakeRequest]:
        arrive(self.order, *requests)
        return list(requests)

    def contexts(self, names: str) -> list[FakeRequest]:
        """One labelled request per letter."""
        return self.arrive(*map(labelled, names))

    def admitted(self) -> str:
        return "".join(request.context for request in self.engine.admitted)

    def serve(self, most: int = 1_000_000, *blocked: FakeRequest) -> list[FakeRequest]:
        admitted = schedule(self.order, self.engine, most, blocked)
        len(self.order)  # as vLLM asks at the end of its step
        return admitted


@pytest.mark.parametrize(
    ("policy", "expected"),
    [("fcfs", "abcabcabc"), ("prefix-group", "aaabbbccc"), ("lpm", "aaabbbccc")],
)
def test_turns_go_by_context(policy: str, expected: str) -> None:
    bench = Bench(OrderSettings(policy))  # type: ignore[arg-type]
    bench.contexts("abcabcabc")
    bench.serve()
    assert bench.admitted() == expected


def test_a_turn_ends_after_quantum_requests() -> None:
    bench = Bench(OrderSettings("prefix-group", quantum=2))
    bench.contexts("abaaaa")
    bench.serve()
    assert bench.admitted() == "aabaaa"


def test_peek_then_pop_returns_the_same_although_the_cache_changed_between() -> None:
    bench = Bench(OrderSettings("lpm"))
    bench.contexts("a")
    bench.serve()
    b, a = bench.contexts("ba")
    assert bench.order.peek() is a
    bench.engine.evict()
    assert bench.order.pop() is a
    bench.engine.admit(a)
    assert bench.order.pop() is b


def test_a_newcomer_between_peek_and_pop_changes_nothing() -> None:
    bench = Bench(OrderSettings("lpm"))
    bench.contexts("a")
    bench.serve()
    (b,) = bench.contexts("b")
    assert bench.order.peek() is b
    (a,) = bench.contexts("a")
    assert bench.order.pop() is b
    bench.engine.admit(b)
    bench.engine.evict()
    assert bench.order.pop() is a


def test_the_longest_cached_prefix_is_next_even_behind_the_window() -> None:
    bench = Bench(OrderSettings("lpm", quantum=1, window=2))
    bench.contexts("x")
    bench.serve()
    bench.contexts("abcx")
    bench.serve(1)
    assert bench.admitted() == "xx"


def test_skipped_requests_regain_their_places_and_do_not_hold_the_turn() -> None:
    bench = Bench(OrderSettings("prefix-group", quantum=2))
    a1, a2, b1, b2, a3 = bench.contexts("aabba")
    bench.serve(1, a1, a2)
    assert bench.engine.admitted == [b1]
    assert list(bench.order) == [a1, a2, b2, a3]
    bench.serve()
    assert bench.engine.admitted == [b1, b2, a1, a2, a3]


def test_a_step_that_skips_many_looks_once_at_what_would_be_freed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench(OrderSettings("reuse"))
    bench.contexts("ab")
    bench.serve()
    waiting = bench.contexts("cdab" * 20)
    looks: list[int] = []
    look = bench.engine.next_freed
    monkeypatch.setattr(bench.engine, "next_freed", lambda: looks.append(0) or look())
    assert len(bench.serve(1, *waiting[:60])) == 1
    assert len(looks) == 1
    bench.serve(2, *waiting[:60])
    assert 2 <= len(looks) <= 4, "anew in each step, and behind each that was admitted"


class Counted(int):
    """A place that counts its comparisons."""

    seen = 0

    def __lt__(self, other: int) -> bool:
        Counted.seen += 1
        return int(self) < int(other)


def test_skipped_requests_come_back_in_one_walk() -> None:
    bench = Bench(OrderSettings("reuse"))
    bench.order._seq = map(Counted, count())  # type: ignore[assignment]
    waiting = bench.contexts("a" * 800)
    while len(bench.order):
        bench.order.pop()
    Counted.seen = 0
    bench.order.give_back(waiting)
    assert list(bench.order) == waiting
    assert Counted.seen < 800 * 40


def test_a_skipped_request_keeps_its_group_alive() -> None:
    bench = Bench(OrderSettings("prefix-group", window=1))
    (a1,) = bench.arrive(unlabelled("a"))
    assert bench.order.pop() is a1
    bench.contexts("b")
    a2, c = bench.arrive(unlabelled("a"), short())
    bench.order.give_back(deque([a1]))
    bench.serve()
    assert bench.engine.admitted[0:2] == [a1, a2]
    assert c in bench.engine.admitted


def test_what_overtook_a_skipped_request_stays_counted() -> None:
    bench = Bench(OrderSettings("fcfs"))
    a, *_ = bench.contexts("abcd")
    for _ in range(3):
        bench.serve(1, a)
    bench.serve()
    assert bench.journal.overtakes == [1, 2, 3, 0]


def test_after_a_return_the_next_is_chosen_anew() -> None:
    bench = Bench(OrderSettings("lpm"))
    a1, a2 = bench.contexts("aa")
    assert bench.order.pop() is a1
    assert bench.order.peek() is a2
    bench.order.give_back(deque([a1]))
    assert [bench.order.pop(), bench.order.pop()] == [a1, a2]


def test_a_request_blocked_for_ever_stops_nobody_and_earns_no_turns() -> None:
    bench = Bench(OrderSettings("lpm", quantum=2, max_overtakes=3))
    stuck, *_ = bench.contexts("a" + "ab" * 20)
    while len(bench.order) > 1:
        bench.serve(1, stuck)
    assert list(bench.order) == [stuck]
    halves = bench.admitted()[:20].count("a"), bench.admitted()[:20].count("b")
    assert min(halves) >= 4
    bench.serve()
    assert bench.engine.admitted[-1] is stuck


def test_the_overdue_are_next_by_overtakes_and_by_wait() -> None:
    bench = Bench(OrderSettings("lpm", quantum=1, max_overtakes=2, max_wait_s=10.0))
    bench.contexts("x")
    bench.serve()
    bench.contexts("cxxxx")
    bench.serve(3)
    assert bench.admitted() == "xxxc"
    bench.contexts("dx")
    bench.engine.clock_s = 11.0
    bench.serve(3)
    assert bench.journal.reasons[1:4] == ["resident", "resident", "overtakes"]
    assert bench.journal.reasons[4] == "wait"
    assert max(bench.journal.overtakes) == 2


def test_below_the_least_usage_the_order_is_first_come_first_served() -> None:
    bench = Bench(OrderSettings("lpm", min_kv_usage=0.5))
    bench.engine.usage = 0.4
    bench.contexts("abab")
    bench.serve(3)
    assert bench.admitted() == "aba"
    bench.engine.usage = 0.6
    bench.contexts("ab")
    bench.serve()
    assert bench.admitted() == "aba" + "abb"


def test_the_preempted_go_first_the_last_one_foremost() -> None:
    bench = Bench(OrderSettings("lpm"))
    a, b, c = bench.contexts("abc")
    bench.serve(2)
    for request in (b, a):
        bench.engine.send_back(request)
        bench.order.add_first(request)
    assert list(bench.order) == [a, b, c]
    bench.serve(0, a)
    assert list(bench.order) == [a, b, c]
    assert bench.serve() == [a, b, c]
    assert len(bench.journal.waits_s) == 3, "each is counted once"


@pytest.mark.parametrize("returns", ["add_first", "add"])
def test_one_that_returns_before_anyone_looked_was_admitted(returns: str) -> None:
    bench = Bench(OrderSettings("lpm"))
    (a,) = bench.contexts("a")
    assert bench.order.pop() is a
    bench.engine.admit(a)
    bench.engine.send_back(a)
    if returns == "add":
        bench.arrive(a)
    else:
        bench.order.add_first(a)
    assert bench.journal.reasons == ["oldest"]
    assert list(bench.order) == [a]
    assert bench.serve() == [a]
    assert not bench.order._skipped


def test_one_that_comes_twice_is_held_once() -> None:
    bench = Bench(OrderSettings("lpm"))
    a, b = bench.contexts("ab")
    bench.arrive(a)
    assert list(bench.order) == [b, a]
    bench.order.give_back(deque([a]))
    assert list(bench.order) == [a, b]
    assert bench.serve() == [a, b]


def test_removal_reaches_the_held_the_skipped_and_the_preempted_and_passes_over_others() -> None:
    bench = Bench(OrderSettings("lpm"))
    a1, a2, b1, c1, c2 = bench.contexts("aabcc")
    p = labelled("p")
    bench.order.add_first(p)
    assert [bench.order.pop() for _ in range(2)] == [p, a1]
    bench.order.remove([a1, c1, labelled("x"), c1])
    bench.order.give_back(deque([p]))
    assert list(bench.order) == [p, a2, b1, c2]
    bench.order.remove([p, p])
    assert bench.serve() == [a2, b1, c2]


def test_nobody_waiting_is_an_index_error() -> None:
    order = Bench(OrderSettings()).order
    with pytest.raises(IndexError):
        order.peek()
    with pytest.raises(IndexError):
        order.pop()


def test_the_journal_has_every_turn_and_every_wait() -> None:
    bench = Bench(OrderSettings("prefix-group", quantum=2))
    bench.contexts("aaab")
    bench.engine.clock_s = 3.0
    bench.serve()
    assert bench.journal.turn_lengths == [2, 1]
    assert bench.journal.reasons == ["oldest"] * 3
    assert bench.journal.waits_s == [3.0] * 4


def test_a_label_with_another_prefix_costs_nobody_a_place() -> None:
    bench = Bench(OrderSettings("lpm"))
    first, liar, other = labelled("a"), replace(labelled("a"), chain=("z",)), labelled("b")
    bench.arrive(first, liar, other)
    assert bench.serve() == [first, liar, other]


@pytest.mark.parametrize("contexts", [1, 100, 2000])
@pytest.mark.parametrize("policy", ["fcfs", "prefix-group", "lpm"])
def test_a_choice_looks_at_a_bounded_number_of_groups(policy: str, contexts: int) -> None:
    chosen = OrderSettings(policy, window=8, quantum=1)  # type: ignore[arg-type]
    bench = Bench(chosen)
    # All begin alike, so that none can be ruled out without a look.
    system = ("system",)
    bench.arrive(*(FakeRequest(f"{i % contexts}", f"{i % contexts}", system) for i in range(2000)))
    bench.serve(500)
    assert bench.engine.lookups <= 500 * (1 + RECENT) * chosen.window


def test_prompts_whose_first_block_was_never_computed_are_not_looked_up() -> None:
    bench = Bench(OrderSettings("lpm"))
    bench.contexts("abcdefgh")
    bench.serve()
    assert bench.engine.lookups == 0


def test_a_window_however_wide_keeps_no_more_contexts_than_are_looked_for() -> None:
    bench = Bench(OrderSettings("lpm", window=10**9))
    for number in range(Roots.most + 50):
        bench.arrive(unlabelled(f"p{number}"))
        bench.serve()
        bench.engine.running.clear()
    assert len(bench.order._grouping._recent) <= Roots.most


def test_nothing_is_left_of_requests_that_passed_through() -> None:
    bench = Bench(OrderSettings("lpm", window=4, quantum=3, max_overtakes=8))
    watched: list[weakref.ref[FakeRequest]] = []
    for step in range(600):
        names = [f"label {step % 50}", f"label {step}"]
        came = bench.arrive(
            *map(labelled, names), unlabelled(f"p{step}", 2), unlabelled(f"p{step % 7}"), short()
        )
        watched += map(weakref.ref, came)
        bench.serve(4, *came[:1])
        bench.order.remove(came[step % 5 :: 4])
        for request in list(bench.engine.running):
            bench.engine.finish(request)
        bench.engine.admitted.clear()
        bench.engine._taken.clear()
    bench.serve()
    bench.engine.running.clear()
    bench.engine.admitted.clear()
    bench.engine._taken.clear()
    came.clear()
    del request
    gc.collect()
    assert sum(ref() is not None for ref in watched) == 0
    order = bench.order
    left = [len(order), len(order._skipped), len(order._first), len(order._line)]
    assert left == [0, 0, 0, 0]
    assert len(order._grouping._labels) <= RECENT * 4
    assert len(order._grouping._recent) <= RECENT * 4
    assert not list(order._grouping.recent)
    assert len(order._overtakes._ahead) == 0
    assert len(order._line._rest) <= 16


def test_one_blocked_for_ever_does_not_let_the_counts_grow() -> None:
    bench = Bench(OrderSettings("lpm", max_overtakes=5))
    (stuck,) = bench.contexts("a")
    for _ in range(30):
        bench.contexts("abc" * 300)
        bench.serve(900, stuck)
    assert len(bench.order) == 1
    assert len(bench.order._overtakes._ahead) <= 20_000
