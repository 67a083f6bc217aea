"""Who waits for which blocks that were served: a tree over chained block hashes."""

from collections.abc import Sequence
from typing import Generic

from scheduler_plugin.group import R, Waiting
from scheduler_plugin.prefix_tree import agreement
from scheduler_plugin.served_stretch import Alike, ServedBlocks, ServedStretch


class ServedTree(Generic[R]):
    """Served prompts, of which about `most_blocks` blocks are remembered, and who waits for them.

    A waiting request is filed at the end of what it shares with anything served. As hashes are
    chained, one comparison tells whether two prompts agree up to a block.
    """

    def __init__(self, most_blocks: int) -> None:
        self._most_blocks = most_blocks
        self._root: ServedStretch[R] = ServedStretch(ServedBlocks((), 0), 0, None, 0)
        self._of_block: dict[object, ServedStretch[R]] = {}
        self._by_last_block: dict[object, Alike[R]] = {}
        self._alike: dict[Waiting[R], Alike[R]] = {}
        self.stretch_of = self._of_block.get
        """Where a served block is, None for one that is not known."""
        self._servings = 0
        self.sharers = 0
        """How many requests wait for a block that was served."""
        self.open_blocks = 0
        """How many blocks they need at least beyond those that were served."""
        self.wanted_blocks = 0
        """How many served blocks somebody waits for, in the cache or not."""

    @property
    def contexts(self) -> int:
        """How many groups of requests begin alike as far as was served."""
        return len({id(alike.at) for alike in self._by_last_block.values()})

    def where(self, entry: Waiting[R]) -> ServedStretch[R]:
        """Where a waiting request is filed. Raises KeyError for a strange one."""
        return self._alike[entry].at

    def waits(self, entry: Waiting[R], chain: Sequence[object]) -> None:
        """File a waiting request with the chained hashes of its prompt's full blocks."""
        last = chain[-1] if chain else None
        alike = self._by_last_block.get(last)
        if alike is None:
            alike = self._by_last_block[last] = Alike(entry, chain)
            self._file(alike)
        else:
            alike.add(entry, chain)
            self._recount(alike, 1)
            if alike.oldest is entry:
                alike.at.has_older(alike)
        self._alike[entry] = alike

    def leaves(self, entry: Waiting[R]) -> Sequence[object]:
        """It waits no more; its chain."""
        alike = self._alike.pop(entry)
        if len(alike) > 1:
            chain = alike.discard(entry)
            self._recount(alike, -1)
            return chain
        self._unfile(alike)
        chain = alike.chain
        alike.clear()
        del self._by_last_block[chain[-1] if chain else None]
        return chain

    def serve(self, chain: Sequence[object]) -> ServedStretch[R]:
        """A prompt was admitted: from now on others may share its blocks. Returns its end."""
        node = self._descend(chain)
        if node.end < len(chain):
            node = self._grow(node, chain)
        served = self._servings = self._servings + 1
        stretch = node
        while stretch.parent is not None:
            stretch.served = served
            stretch = stretch.parent
        if len(self._of_block) > 2 * self._most_blocks:
            self._trim()
        return node

    def oldest_at_or_below(self, stretch: ServedStretch[R]) -> Waiting[R] | None:
        """The oldest filed here, else one from further down."""
        node: ServedStretch[R] | None = stretch
        while node is not None:
            entry = node.oldest()
            if entry is not None:
                return entry
            node = next((child for child in node.children.values() if child.below), None)
        return None

    def _file(self, alike: Alike[R]) -> None:
        node = self._descend(alike.chain)
        if node is self._root:
            node.add([alike])
            return
        block = alike.next_block_of(node)
        self.open_blocks -= node.open_blocks(block)
        node.add([alike])
        self._counted(node, block, len(alike))

    def _unfile(self, alike: Alike[R]) -> None:
        node = alike.at
        if node is self._root:
            node.discard(alike)
            return
        block = alike.next_block
        self.open_blocks -= node.open_blocks(block)
        node.discard(alike)
        self._counted(node, block, -len(alike))

    def _recount(self, alike: Alike[R], more: int) -> None:
        """Those that are alike are so many more."""
        node = alike.at
        alike.edge.count += more
        if node is not self._root:
            self.open_blocks += more
            self.sharers += more
            self._count(node, more)

    def _counted(self, node: ServedStretch[R], block: object, more: int) -> None:
        self.open_blocks += node.open_blocks(block)
        self.sharers += more
        self._count(node, more)

    def _count(
        self, node: ServedStretch[R], more: int, above: ServedStretch[R] | None = None
    ) -> None:
        """So many more wait for this stretch and those up to `above`."""
        while node is not above and node.parent is not None:
            if not node.below:
                self.wanted_blocks += len(node)
            node.below += more
            if not node.below:
                self.wanted_blocks -= len(node)
            node = node.parent

    def _grow(self, node: ServedStretch[R], chain: Sequence[object]) -> ServedStretch[R]:
        """New blocks behind `node`; those who wait for the first of them move there."""
        edge, blocks = chain[node.end], ServedBlocks(chain, node.end)
        new = node.children[edge] = ServedStretch(blocks, len(chain), node, self._servings)
        self._of_block.update(dict.fromkeys(blocks.kept, new))
        if edge in node.waiting:
            self.open_blocks -= node.open_blocks(edge)
            self._move(node.take(edge), node, new)
        return new

    def _move(self, movers: list[Alike[R]], above: ServedStretch[R], new: ServedStretch[R]) -> None:
        """File requests that share the first block of `new`, and how much more is to be seen."""
        ends: dict[int, list[Alike[R]]] = {}
        other = new.chain
        end, first, last = above.end + 1, above.end + 1, len(other)
        for alike in movers:
            chain = alike.chain
            if not _parts_at(chain, other, end):  # most part where the one before did
                end = agreement(chain, other, first, min(len(chain), last))
            ends.setdefault(end, []).append(alike)
        node = new
        for end, same in sorted(ends.items(), reverse=True):
            if end < node.end:
                node = self._part(node, end)
            self._move_all(same, above, node)

    def _move_all(
        self, same: list[Alike[R]], above: ServedStretch[R], node: ServedStretch[R]
    ) -> None:
        """File requests that part here."""
        blocks = {alike.next_block_of(node) for alike in same}
        self.open_blocks -= sum(map(node.open_blocks, blocks))
        node.add(same)
        self.open_blocks += sum(map(node.open_blocks, blocks))
        moved = sum(map(len, same))
        self._count(node, moved, above)
        if above is self._root:
            self.sharers += moved

    def _descend(self, chain: Sequence[object]) -> ServedStretch[R]:
        """The end of what is shared with anything served, where a stretch is parted if need be."""
        node, length = self._root, len(chain)
        while node.end < length:
            child = node.children.get(chain[node.end])
            if child is None:
                break
            end = min(child.end, length)
            if chain[end - 1] != child.chain[end - 1]:
                return self._part(child, agreement(chain, child.chain, node.end + 1, end - 1))
            if end < child.end:
                return self._part(child, end)
            node = child
        return node

    def _part(self, lower: ServedStretch[R], end: int) -> ServedStretch[R]:
        """The first blocks of a stretch become one of their own."""
        parent = lower.parent
        assert parent is not None
        upper: ServedStretch[R] = ServedStretch(lower.chain, end, parent, lower.served)
        upper.below = lower.below
        parent.children[lower.chain[parent.end]] = upper
        upper.children[lower.chain[end]] = lower
        lower.parent = upper
        for block in upper.blocks:
            self._of_block[block] = upper
        return upper

    def _trim(self) -> None:
        """Forget what was served longest ago; who waits for it is filed above."""
        ends = {s for s in self._of_block.values() if not s.children}
        for stretch in sorted(ends, key=lambda each: each.served):
            node = stretch
            while not node.children and node.parent is not None:
                if len(self._of_block) <= self._most_blocks:
                    return
                parent = node.parent
                self._forget(node, parent)
                node = parent

    def _forget(self, leaf: ServedStretch[R], parent: ServedStretch[R]) -> None:
        movers = [alike for edge in leaf.waiting.values() for alike in edge.alike]
        for alike in movers:
            self._unfile(alike)
        del parent.children[leaf.chain[parent.end]]
        for block in leaf.blocks:
            self._of_block.pop(block, None)
        leaf.parent = None
        for alike in movers:
            self._file(alike)


def _parts_at(chain: Sequence[object], other: ServedBlocks, end: int) -> bool:
    """Whether two chains agree up to `end` blocks and no further."""
    if end > len(chain) or end > len(other) or chain[end - 1] != other[end - 1]:
        return False
    return end == len(chain) or end == len(other) or chain[end] != other[end]
