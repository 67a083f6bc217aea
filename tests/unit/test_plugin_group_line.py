"""A line of groups is sorted by its oldest requests, as `sorted` would."""

from collections.abc import Iterator

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from scheduler_plugin.group import Group, Waiting
from scheduler_plugin.group_line import GroupLine


def waiting(seq: int) -> Waiting[str]:
    return Waiting(f"request {seq}", seq, 0.0)


def members(group: Group[str]) -> Iterator[Waiting[str]]:
    entry, earlier = group.head, None
    while entry is not None:
        assert entry.earlier is earlier
        yield entry
        entry, earlier = entry.later, entry


class LineMachine(RuleBasedStateMachine):
    """Groups gain, lose and regain members in every order."""

    @initialize(window=st.integers(1, 4))
    def begin(self, window: int) -> None:
        self.window = window
        self.line: GroupLine[str] = GroupLine(window)
        self.groups: list[Group[str]] = []
        self.here: dict[Group[str], list[Waiting[str]]] = {}
        self.taken: list[Waiting[str]] = []
        self.seq = 0

    def add(self, group: Group[str]) -> None:
        entry = waiting(self.seq)
        self.seq += 1
        group.add(entry)
        self.here[group].append(entry)
        self.line.file(group)

    @rule()
    def new_group(self) -> None:
        group: Group[str] = Group()
        self.groups.append(group)
        self.here[group] = []
        self.add(group)

    @precondition(lambda self: self.groups)
    @rule(data=st.data())
    def another_member(self, data: st.DataObject) -> None:
        self.add(data.draw(st.sampled_from(self.groups)))

    @precondition(lambda self: any(self.here.values()))
    @rule(data=st.data())
    def take(self, data: st.DataObject) -> None:
        group = data.draw(st.sampled_from([group for group in self.groups if self.here[group]]))
        entry = data.draw(st.sampled_from(self.here[group]))
        group.take(entry)
        self.here[group].remove(entry)
        self.taken.append(entry)
        self.line.file(group)

    @precondition(lambda self: self.taken)
    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        entry = self.taken.pop(data.draw(st.integers(0, len(self.taken) - 1)))
        assert entry.group is not None
        entry.group.give_back([entry])
        self.here[entry.group].append(entry)
        self.here[entry.group].sort(key=lambda entry: entry.seq)
        self.line.file(entry.group)

    @invariant()
    def looks_sorted(self) -> None:
        if not hasattr(self, "line"):
            return
        expected = sorted((here[0].seq, group) for group, here in self.here.items() if here)
        groups = [group for _, group in expected]
        assert len(self.line) == len(groups)
        assert list(self.line) == groups[: self.window]
        assert self.line.oldest is (groups[0] if groups else None)
        beyond = self.line.beyond(self.groups)
        assert sorted(beyond, key=groups.index) == groups[self.window :]
        for group, here in self.here.items():
            assert list(members(group)) == here


LineMachine.TestCase.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
TestLineIsSorted = LineMachine.TestCase


def test_places_left_behind_the_window_do_not_pile_up() -> None:
    line: GroupLine[str] = GroupLine(2)
    groups: list[Group[str]] = [Group() for _ in range(5)]
    for seq, group in enumerate(groups):
        group.add(waiting(seq))
        line.file(group)
    for seq in range(5, 5000):
        groups[4].add(waiting(seq))
        groups[4].take(next(members(groups[4])))
        line.file(groups[4])
    assert len(line._rest) < 20
    assert [group.head.seq for group in line if group.head] == [0, 1]
