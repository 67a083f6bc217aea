"""The tree of served prompts against sets of prefixes, whatever is served and waits in between."""

from gc import collect
from itertools import count
from types import SimpleNamespace
from typing import Any
from weakref import ref

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from scheduler_plugin.group import Waiting
from scheduler_plugin.overtakes import Overtakes
from scheduler_plugin.reuse import ReuseChoice
from scheduler_plugin.served_tree import ServedTree
from scheduler_plugin.settings import OrderSettings

TOKENS = st.lists(st.sampled_from("ab"), max_size=6)


def chained(letters: list[str]) -> tuple[str, ...]:
    """Hashes of which each stands for all up to it."""
    return tuple("".join(letters[: n + 1]) for n in range(len(letters)))


class TreeMachine(RuleBasedStateMachine):
    """Serves and files chains; what is known of each is counted anew by the naive way."""

    def __init__(self) -> None:
        super().__init__()
        self.tree: ServedTree[int] = ServedTree(most_blocks=1000)
        self.served: set[str] = set()
        self.waiting: dict[Waiting[int], tuple[str, ...]] = {}
        self.numbers = count()

    @rule(letters=TOKENS)
    def serve(self, letters: list[str]) -> None:
        end = self.tree.serve(chained(letters))
        self.served |= set(chained(letters))
        assert end.end == len(letters)

    @rule(letters=TOKENS)
    def waits(self, letters: list[str]) -> None:
        number = next(self.numbers)
        entry = Waiting(number, number, 0.0)
        self.waiting[entry] = chained(letters)
        self.tree.waits(entry, chained(letters))

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def leaves(self, data: st.DataObject) -> None:
        entry = data.draw(st.sampled_from(list(self.waiting)))
        assert self.tree.leaves(entry) == self.waiting.pop(entry)

    def shared(self, chain: tuple[str, ...]) -> int:
        """How many leading blocks of it were served."""
        return sum(block in self.served for block in chain)

    @invariant()
    def knows_where_each_parts_from_what_was_served(self) -> None:
        for entry, chain in self.waiting.items():
            at = self.tree.where(entry)
            assert at.end == self.shared(chain)
            blocks = [block for stretch in at.path for block in stretch.blocks]
            assert sorted(blocks, key=len) == list(chain[: at.end])

    @invariant()
    def counts_who_waits_for_each_block(self) -> None:
        wanted = {block for chain in self.waiting.values() for block in chain[: self.shared(chain)]}
        for block in self.served:
            stretch = self.tree.stretch_of(block)
            assert stretch is not None
            assert block in stretch.blocks
            assert stretch.below == sum(block in chain for chain in self.waiting.values())
        assert self.tree.wanted_blocks == len(wanted)

    @invariant()
    def counts_those_that_wait_for_something_served(self) -> None:
        shared = [(len(chain), self.shared(chain)) for chain in self.waiting.values()]
        assert self.tree.sharers == sum(bool(end) for _, end in shared)
        most = sum(length - end + 1 for length, end in shared if end)
        assert sum(bool(end) for _, end in shared) <= self.tree.open_blocks <= most

    @invariant()
    def finds_the_oldest_of_a_prefix(self) -> None:
        for block in self.served:
            stretch = self.tree.stretch_of(block)
            assert stretch is not None
            here = [e.seq for e in self.waiting if self.tree.where(e) is stretch]
            found = self.tree.oldest_at_or_below(stretch)
            if here:
                assert found is not None
                assert found.seq == min(here)
            else:
                assert (found is None) is (not stretch.below)


TreeMachine.TestCase.settings = settings(
    max_examples=60, stateful_step_count=25, deadline=None, print_blob=True
)
TestServedTree = TreeMachine.TestCase


def test_what_was_served_longest_ago_is_forgotten_and_who_waits_for_it_moves_up() -> None:
    tree: ServedTree[int] = ServedTree(most_blocks=10)
    start = [f"s{n}" for n in range(4)]
    first = Waiting(0, 0, 0.0)
    tree.waits(first, (*start, "0a", "0b", "0c"))
    for number in range(8):
        tree.serve((*start, f"{number}a", f"{number}b", f"{number}c"))
    assert tree.stretch_of("7c") is not None
    assert tree.stretch_of("0c") is None
    assert tree.where(first).end == 4
    assert (tree.sharers, tree.open_blocks, tree.wanted_blocks) == (1, 4, 4)
    tree.leaves(first)
    assert (tree.sharers, tree.open_blocks, tree.wanted_blocks) == (0, 0, 0)


class Request:
    """Of which it can be seen whether somebody still holds it."""


def test_nobody_is_held_who_waits_no_more() -> None:
    """Whatever it waited for: nothing that was served, a beginning that all share, or a text."""
    tree: ServedTree[Request] = ServedTree(most_blocks=100)
    start = ("s0", "s1")
    staying = [Waiting(Request(), n, 0.0) for n in range(3)]
    for entry, chain in zip(staying, [(), start, (*start, "x")], strict=True):
        tree.waits(entry, chain)
    gone = []
    for number in range(500):
        chain = [("n",), (*start, f"{number % 4}"), (*start, f"{number % 4}", f"{number}")][
            number % 3
        ]
        entry = Waiting(Request(), 10 + number, 0.0)
        gone.append(ref(entry.request))
        tree.waits(entry, chain)
        if number % 5:
            tree.serve(chain)
        tree.leaves(entry)
        del entry
    collect()
    assert sum(each() is not None for each in gone) <= len(staying)


def test_what_prompts_have_in_common_is_kept_once() -> None:
    tree: ServedTree[int] = ServedTree(most_blocks=100_000)
    context = tuple(f"c{n}" for n in range(2000))
    ends = [tree.serve((*context, *(f"{n}.{m}" for m in range(8)))) for n in range(50)]
    stretches = {each for end in ends for each in end.path}
    kept = {id(each.chain): len(each.chain) - each.chain.start for each in stretches}
    assert sum(kept.values()) == 2000 + 50 * 8


def test_a_crowd_beyond_what_is_counted_bounds_overtaking_all_the_same() -> None:
    overtakes, crowd = Overtakes(limit=100), 1000
    engine: Any = SimpleNamespace(
        cache_blocks=lambda: 10,
        chain_of=lambda _: (),
        per_block=lambda: 1,
        running_requests=list,
    )
    choice: ReuseChoice[int] = ReuseChoice(OrderSettings(policy="reuse"), engine, overtakes)
    entries = [Waiting(n, n, 0.0) for n in range(crowd)]
    for entry in entries:
        choice.waits(entry)
    for number in range(crowd, crowd + 5000):
        overtakes.admitted(number)
    assert choice.next(entries[0]) == (entries[0], "overtakes")
