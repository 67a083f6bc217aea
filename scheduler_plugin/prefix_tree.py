"""Which waiting contexts share a prefix: a compressed tree over chained block hashes."""

from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar

T = TypeVar("T")


class Node(Generic[T]):
    """The end of a shared stretch: the first `depth` blocks of `chain` lead here."""

    __slots__ = ("chain", "children", "depth", "parent", "value")

    def __init__(
        self, chain: Sequence[object], depth: int, parent: "Node[T] | None", value: T | None
    ) -> None:
        self.chain = chain
        self.depth = depth
        self.parent = parent
        self.value = value
        self.children: dict[object, Node[T]] = {}


class PrefixTree(Generic[T]):
    """Values filed under chains of block hashes, each hash standing for all blocks up to it.

    As the hashes are chained, one comparison tells whether two chains agree up to a block, so a
    long stretch costs no more than a short one; it is split only when another chain leaves it.
    """

    def __init__(self) -> None:
        self._root: Node[T] = Node((), 0, None, None)

    def nearest(self, chain: Sequence[object]) -> tuple[T | None, int]:
        """A value whose chain shares the most blocks with this one, and how many."""
        node, shared = self._descend(chain)
        if not shared:
            return None, 0
        while node.value is None:
            node = next(iter(node.children.values()))
        return node.value, shared

    def insert(self, chain: Sequence[object], value: T) -> Node[T]:
        """File a value; returns what `remove` takes. Raises ValueError for an empty chain."""
        if not chain:
            raise ValueError("a chain without blocks has no place in the tree")
        chain = tuple(chain)
        node, shared = self._descend(chain)
        if shared < node.depth:
            node = self._split(node, shared)
        if node.depth == len(chain):
            if node.value is None:
                node.value = value
                return node
            return Node(chain, node.depth, None, value)  # the same chain is there already
        child: Node[T] = Node(chain, len(chain), node, value)
        node.children[chain[node.depth]] = child
        return child

    def remove(self, node: Node[T]) -> None:
        """Take a value out again and join the stretches it kept apart."""
        node.value = None
        while node.parent is not None and node.value is None and len(node.children) < 2:
            parent = node.parent
            edge = node.chain[parent.depth]
            if node.children:
                (child,) = node.children.values()
                child.parent = parent
                parent.children[edge] = child
            else:
                del parent.children[edge]
            node.parent = None
            node = parent

    def _descend(self, chain: Sequence[object]) -> tuple[Node[T], int]:
        """The node at or below the end of what is shared, and the number of shared blocks."""
        node, length = self._root, len(chain)
        while node.depth < length:
            child = node.children.get(chain[node.depth])
            if child is None:
                break
            end = min(child.depth, length)
            if chain[end - 1] != child.chain[end - 1]:
                return child, agreement(chain, child.chain, node.depth + 1, end - 1)
            node = child
            if end < child.depth:
                return child, end
        return node, node.depth

    def _split(self, node: Node[T], depth: int) -> Node[T]:
        """A new node on the stretch that leads to `node`."""
        parent = node.parent
        assert parent is not None
        middle: Node[T] = Node(node.chain, depth, parent, None)
        parent.children[node.chain[parent.depth]] = middle
        middle.children[node.chain[depth]] = node
        node.parent = middle
        return middle


class Places(Protocol):
    """What has a block at each place."""

    def __getitem__(self, place: int, /) -> object: ...


def agreement(one: Places, other: Places, low: int, high: int) -> int:
    """How many blocks agree, known to be from `low` to `high`."""
    while low < high:
        middle = (low + high + 1) // 2
        if one[middle - 1] == other[middle - 1]:
            low = middle
        else:
            high = middle - 1
    return low
