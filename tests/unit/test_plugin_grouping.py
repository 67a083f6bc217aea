"""Which group a request joins, and when a group is forgotten."""

import pytest
from fake_kv_engine import chain_of

from scheduler_plugin.group import Group, Waiting
from scheduler_plugin.grouping import Grouping


def join(grouping: Grouping[str], label: str | None, chain: tuple[object, ...]) -> Group[str]:
    group = grouping.group_of(label, chain)
    group.add(Waiting("a request", 0, 0.0))
    return group


def empty(grouping: Grouping[str], group: Group[str]) -> None:
    assert group.head is not None
    group.take(group.head)
    group.members -= 1
    grouping.drop_if_empty(group)


@pytest.mark.parametrize(
    ("key", "same_label", "same_prefix"),
    [("label", True, False), ("prefix", False, True), ("auto", True, False)],
)
def test_the_key_decides_between_label_and_prefix(
    key: str, same_label: bool, same_prefix: bool
) -> None:
    grouping: Grouping[str] = Grouping(key, recent=4)
    group = join(grouping, "a", chain_of("x", 4))
    assert (join(grouping, "a", chain_of("y", 4)) is group) == same_label
    assert (join(grouping, "b", chain_of("x", 4)) is group) == same_prefix


def test_auto_groups_the_unlabelled_by_prefix_apart_from_the_labelled() -> None:
    grouping: Grouping[str] = Grouping("auto", recent=4)
    by_label = join(grouping, "a", chain_of("x", 4))
    by_prefix = join(grouping, None, chain_of("x", 4))
    assert by_prefix is not by_label
    assert join(grouping, None, chain_of("x", 4)) is by_prefix


@pytest.mark.parametrize("key", ["label", "prefix", "auto"])
def test_nobody_joins_a_request_without_label_and_full_block(key: str) -> None:
    grouping: Grouping[str] = Grouping(key, recent=4)
    assert join(grouping, None, ()) is not join(grouping, None, ())


@pytest.mark.parametrize(("question", "joins"), [(0, True), (2, True), (3, False)])
def test_three_quarters_of_the_newcomers_blocks_must_be_shared(question: int, joins: bool) -> None:
    grouping: Grouping[str] = Grouping("prefix", recent=4)
    group = join(grouping, None, chain_of("x", 8))
    newcomer = chain_of("x", 8) + tuple(f"question {block}" for block in range(question))
    assert (join(grouping, None, newcomer) is group) == joins


def test_a_common_system_prompt_does_not_make_one_context() -> None:
    grouping: Grouping[str] = Grouping("prefix", recent=4)
    system = chain_of("system", 5)
    groups = [join(grouping, None, system + chain_of(context, 5)) for context in "abc"]
    assert len(set(groups)) == 3


@pytest.mark.parametrize("label", ["a", None])
def test_a_group_outlives_its_members_only_while_recent(label: str | None) -> None:
    grouping: Grouping[str] = Grouping("auto", recent=1)
    group = join(grouping, label, chain_of("x", 4))
    grouping.served(group)
    empty(grouping, group)
    assert join(grouping, label, chain_of("x", 4)) is group
    empty(grouping, group)
    other = join(grouping, "other", ())
    grouping.served(other)
    assert join(grouping, label, chain_of("x", 4)) is not group


@pytest.mark.parametrize("label", ["a", None])
def test_a_group_with_a_skipped_member_is_kept(label: str | None) -> None:
    grouping: Grouping[str] = Grouping("auto", recent=1)
    group = join(grouping, label, chain_of("x", 4))
    entry = group.head
    assert entry is not None
    group.take(entry)
    grouping.drop_if_empty(group)
    assert join(grouping, label, chain_of("x", 4)) is group
    assert group.head is not entry
    group.give_back([entry])
    assert group.head is entry


def test_a_group_without_key_and_prefix_is_never_kept() -> None:
    grouping: Grouping[str] = Grouping("auto", recent=4)
    group = join(grouping, None, ())
    grouping.served(group)
    assert list(grouping.recent) == []
