"""What the order of waiting requests promises, whatever comes in whatever sequence."""

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import replace

from fake_kv_engine import (
    FakeKvEngine,
    FakeRequest,
    arrive,
    chain_of,
    labelled,
    short,
    unlabelled,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
)
from naive_context_order import NaiveOrder

from scheduler_plugin.order import ContextOrder
from scheduler_plugin.settings import OrderSettings

CONTEXTS = st.sampled_from("abcde")
SMALL = st.integers(1, 3)
MAX_OVERTAKES = st.integers(0, 6)
ALL_SETTINGS = st.builds(
    OrderSettings,
    policy=st.sampled_from(["fcfs", "prefix-group", "lpm"]),
    quantum=SMALL,
    max_overtakes=MAX_OVERTAKES,
    max_wait_s=st.sampled_from([None, 5.0]),
    window=SMALL,
    min_kv_usage=st.sampled_from([0.0, 0.5]),
)
REUSE = st.builds(OrderSettings, policy=st.just("reuse"), max_overtakes=MAX_OVERTAKES)
RESIDENCIES: dict[str, Callable[[FakeRequest], int] | None] = {
    "cache": None,
    "nothing": lambda request: 0,
    "youngest": lambda request: request.number + 1,
    "one context": lambda request: int(request.context == "e"),
}


class OrderMachine(RuleBasedStateMachine):
    """Drives the order and the naive model with the same calls; both must offer the same."""

    @initialize(chosen=ALL_SETTINGS, residency=st.sampled_from(sorted(RESIDENCIES)))
    def begin(self, chosen: OrderSettings, residency: str) -> None:
        self.engine = FakeKvEngine()
        self.engine.residency = RESIDENCIES[residency]
        self.order: ContextOrder[FakeRequest] = ContextOrder(chosen, self.engine)
        self.model = NaiveOrder(chosen, self.engine)
        self.stock: deque[FakeRequest] = deque()
        self.skipped: deque[FakeRequest] = deque()
        self.is_fcfs = chosen.policy == "fcfs"

    def arrival(self, request: FakeRequest) -> None:
        arrive(self.order, request)
        self.model.add(request)
        self.stock.append(request)

    @rule(context=CONTEXTS)
    def labelled_arrives(self, context: str) -> None:
        self.arrival(labelled(context))

    @rule(context=CONTEXTS)
    def labelled_with_another_prefix_arrives(self, context: str) -> None:
        self.arrival(replace(labelled(context), chain=("strange", f"{context}/1")))

    @rule(context=CONTEXTS, question_blocks=st.integers(0, 2))
    def unlabelled_arrives(self, context: str, question_blocks: int) -> None:
        self.arrival(unlabelled(f"prefix {context}", question_blocks))

    @rule()
    def short_arrives(self) -> None:
        self.arrival(short())

    def pop(self, evicts: bool) -> FakeRequest:
        expected, self.begins_turn = self.model.next()
        assert self.order.peek() is expected
        if evicts:
            self.engine.evict()
        assert self.order.pop() is expected
        if self.is_fcfs:
            assert self.stock.popleft() is expected
        return expected

    @precondition(lambda self: self.model.everyone())
    @rule()
    def peek(self) -> None:
        expected, _ = self.model.next()
        assert self.order.peek() is expected

    @precondition(lambda self: self.model.everyone())
    @rule(evicts=st.booleans())
    def admit(self, evicts: bool) -> None:
        request = self.pop(evicts)
        self.model.admit(request, self.begins_turn)
        self.engine.admit(request)

    @precondition(lambda self: self.model.everyone())
    @rule(evicts=st.booleans())
    def skip(self, evicts: bool) -> None:
        request = self.pop(evicts)
        self.model.skip(request)
        self.skipped.appendleft(request)

    @rule()
    def end_step(self) -> None:
        if self.skipped:
            self.order.give_back(self.skipped)
            self.stock.extendleft(self.skipped)
            self.skipped = deque()
            self.model.give_back()

    @precondition(lambda self: self.engine.running)
    @rule(data=st.data())
    def preempt(self, data: st.DataObject) -> None:
        self.end_step()
        request = data.draw(st.sampled_from(list(self.engine.running)))
        self.engine.send_back(request)
        self.order.add_first(request)
        self.model.add_first(request)
        self.stock.appendleft(request)

    @precondition(lambda self: self.engine.running)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        self.engine.finish(data.draw(st.sampled_from(list(self.engine.running))))

    @precondition(lambda self: self.engine.running)
    @rule(data=st.data())
    def session_goes_on(self, data: st.DataObject) -> None:
        request = data.draw(st.sampled_from(list(self.engine.running)))
        self.engine.send_back(request)
        self.arrival(request)

    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        candidates = [*self.model.everyone(), *self.skipped, *self.engine.running, labelled("x")]
        gone = data.draw(st.lists(st.sampled_from(candidates), max_size=4))
        self.order.remove(gone)
        self.model.remove(gone)
        self.stock = deque(request for request in self.stock if request not in gone)
        self.skipped = deque(request for request in self.skipped if request not in gone)

    @rule(seconds=st.sampled_from([1.0, 10.0]), usage=st.sampled_from([0.1, 0.9]))
    def time_passes(self, seconds: float, usage: float) -> None:
        self.engine.clock_s += seconds
        self.engine.usage = usage

    @rule()
    def holds_what_it_was_given(self) -> None:
        assert len(self.order) == len(self.model.everyone())
        assert list(self.order) == self.model.everyone()
        if self.is_fcfs:
            assert list(self.order) == list(self.stock)

    def teardown(self) -> None:
        self.end_step()
        self.holds_what_it_was_given()


OrderMachine.TestCase.settings = settings(
    max_examples=120, stateful_step_count=40, deadline=None, print_blob=True
)
TestOrderEqualsItsNaiveModel = OrderMachine.TestCase


class Watched:
    """Counts, apart from the order, who overtakes whom."""

    def __init__(self) -> None:
        self.line: list[FakeRequest] = []
        self.position: dict[FakeRequest, int] = {}
        self.older_contexts: dict[FakeRequest, int] = {}
        self.older_skipped: dict[FakeRequest, set[FakeRequest]] = {}
        self.admissions: Counter[FakeRequest] = Counter()
        self.overtakes: Counter[FakeRequest] = Counter()

    def arrived(self, request: FakeRequest) -> None:
        contexts = {other.context for other in self.line} - {request.context}
        self.older_contexts[request] = len(contexts)
        self.older_skipped[request] = set()
        self.line.append(request)
        self.position[request] = len(self.line)

    def skipped(self, request: FakeRequest) -> None:
        for younger in self.line[self.line.index(request) :]:
            self.older_skipped[younger].add(request)

    def admitted(self, request: FakeRequest) -> None:
        place = self.line.index(request)
        self.overtakes.update(self.line[:place])
        self.admissions.update(self.line)
        del self.line[place]


STEP = st.tuples(
    st.lists(CONTEXTS, max_size=6),  # who arrives
    st.integers(0, 4),  # how many are admitted
    st.sets(st.integers(0, 15)),  # which waiting requests cannot run in this step
)


Step = tuple[list[str], int, set[int]]
Check = Callable[[Watched, FakeRequest], None]


def run_steps(
    chosen: OrderSettings,
    residency: str,
    steps: list[Step],
    check: Check,
) -> None:
    """Play the steps and then drain; `check` is called before each admission counts."""
    engine, watched = FakeKvEngine(), Watched()
    engine.residency = RESIDENCIES[residency]
    order: ContextOrder[FakeRequest] = ContextOrder(chosen, engine)
    for contexts, most, places in [*steps, ([], 1_000_000, set())]:
        for context in contexts:
            watched.arrived(request := labelled(context))
            arrive(order, request)
        blocked = {watched.line[place] for place in places if place < len(watched.line)}
        skipped: deque[FakeRequest] = deque()
        for _ in range(most + len(blocked)):
            if not len(order):
                break
            request = order.pop()
            if request in blocked:
                watched.skipped(request)
                skipped.appendleft(request)
                continue
            engine.admit(request)
            check(watched, request)
            watched.admitted(request)
        order.give_back(skipped)
    assert not watched.line
    assert not len(order)


def never_skipped(watched: Watched, request: FakeRequest) -> bool:
    return request not in watched.older_skipped[request]


@given(ALL_SETTINGS | REUSE, st.sampled_from(["cache", "nothing"]), st.lists(STEP, max_size=25))
@settings(deadline=None)
def test_first_come_first_served_within_a_context(
    chosen: OrderSettings, residency: str, steps: list[Step]
) -> None:
    def check(watched: Watched, request: FakeRequest) -> None:
        older = watched.line[: watched.line.index(request)]
        same = [other for other in older if other.context == request.context]
        assert all(other in watched.older_skipped[request] for other in same)

    run_steps(chosen, residency, steps, check)


@given(SMALL, st.lists(STEP, max_size=25))
@settings(deadline=None)
def test_prefix_group_admits_within_quantum_times_the_first_come_position(
    quantum: int, steps: list[Step]
) -> None:
    def check(watched: Watched, request: FakeRequest) -> None:
        if never_skipped(watched, request):
            until = watched.admissions[request] + 1
            assert until <= quantum * watched.position[request]

    run_steps(OrderSettings("prefix-group", quantum=quantum), "nothing", steps, check)


@given(
    st.builds(
        OrderSettings,
        policy=st.just("lpm"),
        key=st.just("label"),
        quantum=SMALL,
        max_overtakes=MAX_OVERTAKES,
        window=SMALL,
    ),
    st.sampled_from(sorted(RESIDENCIES)),
    st.lists(STEP, max_size=40),
)
@settings(deadline=None)
def test_lpm_overtakes_within_its_bound(
    chosen: OrderSettings, residency: str, steps: list[Step]
) -> None:
    """Of an older request that was skipped each return can give its context one turn more."""

    def check(watched: Watched, request: FakeRequest) -> None:
        if never_skipped(watched, request):
            turns = watched.older_contexts[request] + len(watched.older_skipped[request]) + 1
            assert watched.overtakes[request] <= chosen.max_overtakes + chosen.quantum * turns

    run_steps(chosen, residency, steps, check)


@given(REUSE, st.sampled_from(["cache", "nothing"]), st.lists(STEP, max_size=40))
@settings(deadline=None)
def test_reuse_overtakes_within_its_bound(
    chosen: OrderSettings, residency: str, steps: list[Step]
) -> None:
    """`max_overtakes`, or half of as many as ever waited at once, if these are more."""
    most = 0

    def check(watched: Watched, request: FakeRequest) -> None:
        nonlocal most
        most = max(most, len(watched.line))
        if never_skipped(watched, request):
            assert watched.overtakes[request] <= max(chosen.max_overtakes, (most + 1) // 2)

    run_steps(chosen, residency, steps, check)


@given(REUSE, st.lists(STEP, max_size=25))
@settings(deadline=None)
def test_reuse_is_first_come_first_served_where_nothing_is_cached(
    chosen: OrderSettings, steps: list[Step]
) -> None:
    def check(watched: Watched, request: FakeRequest) -> None:
        older = watched.line[: watched.line.index(request)]
        assert all(other in watched.older_skipped[request] for other in older)

    run_steps(chosen, "nothing", steps, check)


def test_who_finds_a_crowd_may_be_overtaken_by_half_of_it() -> None:
    engine, chosen = FakeKvEngine(blocks=20), OrderSettings("reuse", max_overtakes=4)
    order: ContextOrder[FakeRequest] = ContextOrder(chosen, engine)
    arrive(order, unlabelled("a", 1))
    engine.admit(order.pop())
    arrive(order, *(unlabelled("a", 1) for _ in range(30)))
    arrive(order, cold := FakeRequest("cold", None, chain_of("cold", 14)))
    served = 0
    while order.peek() is not cold:
        arrive(order, unlabelled("a", 1))
        admitted = order.pop()
        engine.admit(admitted)
        engine.finish(admitted)
        served += 1
    assert chosen.max_overtakes < served - 30 <= 31 // 2 + 1


def test_a_crowd_that_gave_up_lets_nobody_be_overtaken_more_often() -> None:
    engine, chosen = FakeKvEngine(blocks=20), OrderSettings("reuse")
    order: ContextOrder[FakeRequest] = ContextOrder(chosen, engine)
    arrive(order, unlabelled("a", 1))
    engine.admit(order.pop())
    crowd = [unlabelled(f"crowd {number}") for number in range(10 * chosen.max_overtakes)]
    for request in crowd:
        arrive(order, request)
    order.remove(crowd)
    arrive(order, cold := FakeRequest("cold", None, chain_of("cold", 14)))
    arrive(order, unlabelled("a", 1), unlabelled("a", 1))
    overtaken = 0
    while len(order) < 10 * chosen.max_overtakes:
        arrive(order, unlabelled("a", 1))
        admitted = order.pop()
        engine.admit(admitted)
        engine.finish(admitted)
        if admitted is cold:
            break
        overtaken += 1
    assert 0 < overtaken <= chosen.max_overtakes
