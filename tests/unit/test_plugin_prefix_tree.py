"""A prefix tree finds the longest common prefix, as comparing with every chain would."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler_plugin.prefix_tree import Node, PrefixTree

BLOCKS = st.lists(st.integers(0, 2), min_size=1, max_size=8)


def chained(blocks: list[int]) -> tuple[object, ...]:
    """Hashes of which each stands for all blocks up to it."""
    return tuple(tuple(blocks[: end + 1]) for end in range(len(blocks)))


def common(one: tuple[object, ...], other: tuple[object, ...]) -> int:
    return sum(a == b for a, b in zip(one, other, strict=False))


def nodes_of(tree: PrefixTree[int]) -> list[Node[int]]:
    found, ahead = [], [tree._root]
    while ahead:
        found.append(node := ahead.pop())
        ahead.extend(node.children.values())
    return found


def check_shape(tree: PrefixTree[int]) -> None:
    """No stretch without a value or a fork at its end, and parents that know their children."""
    for node in nodes_of(tree):
        assert node.parent is None or node.value is not None or len(node.children) > 1
        for first, child in node.children.items():
            assert child.parent is node
            assert child.depth > node.depth
            assert child.chain[node.depth] == first


@given(st.lists(st.tuples(st.booleans(), BLOCKS), max_size=40), st.lists(BLOCKS, max_size=5))
@settings(max_examples=300, deadline=None)
def test_finds_what_a_comparison_with_all_finds(
    changes: list[tuple[bool, list[int]]], questions: list[list[int]]
) -> None:
    tree: PrefixTree[int] = PrefixTree()
    filed: dict[tuple[object, ...], tuple[int, Node[int]]] = {}
    for number, (adds, blocks) in enumerate(changes):
        chain = chained(blocks)
        if adds and chain not in filed:
            filed[chain] = number, tree.insert(chain, number)
        elif filed and not adds:
            _, node = filed.pop(list(filed)[number % len(filed)])
            tree.remove(node)
        check_shape(tree)
        for asked in [blocks, *questions]:
            value, shared = tree.nearest(chained(asked))
            nearest = {
                number: common(chain, chained(asked)) for chain, (number, _) in filed.items()
            }
            assert shared == max(nearest.values(), default=0)
            assert (value is None) if not shared else (nearest[value] == shared)
    for _, node in filed.values():
        tree.remove(node)
    assert len(nodes_of(tree)) == 1


def test_the_same_chain_twice_leaves_the_first_in_the_tree() -> None:
    tree: PrefixTree[int] = PrefixTree()
    first = tree.insert("abc", 1)
    second = tree.insert("abc", 2)
    tree.remove(second)
    assert tree.nearest("abcd") == (1, 3)
    tree.remove(first)
    assert tree.nearest("abcd") == (None, 0)


def test_a_chain_that_grows_later_stays_where_it_was_filed() -> None:
    tree: PrefixTree[int] = PrefixTree()
    chain: list[object] = ["a", "b"]
    node = tree.insert(chain, 1)
    chain[1:] = ["x", "y"]
    assert tree.nearest(["a", "b", "c"]) == (1, 2)
    tree.remove(node)
    assert len(nodes_of(tree)) == 1


class Counted(str):
    """A hash that counts how often any of its kind is compared."""

    compared = 0

    def __eq__(self, other: object) -> bool:
        Counted.compared += 1
        return str.__eq__(self, other)  # type: ignore[arg-type]

    __hash__ = str.__hash__


@pytest.mark.parametrize("shared", [1, 2500, 4999])
def test_long_chains_cost_few_comparisons(shared: int) -> None:
    tree: PrefixTree[int] = PrefixTree()
    one = [Counted(f"{block}") for block in range(5000)]
    other = [Counted(f"{block}" if block < shared else f"other {block}") for block in range(5000)]
    tree.insert(one, 1)
    Counted.compared = 0
    assert tree.nearest(other) == (1, shared)
    assert Counted.compared < 30


def test_an_empty_chain_has_no_place() -> None:
    with pytest.raises(ValueError, match="without blocks"):
        PrefixTree().insert([], 1)
