"""Who waits for which blocks that were served: a tree over chained block hashes."""

from collections.abc import Iterable, Iterator, Sequence
from heapq import heapify, heappop, heappush
from typing import Generic

from scheduler_plugin.group import R, Waiting
from scheduler_plugin.prefix_tree import agreement


class ServedBlocks:
    """The blocks of a chain from `start` on, by their places in the whole chain: those before are
    another stretch's, and are not kept twice."""

    __slots__ = ("_blocks", "start")

    def __init__(self, chain: Sequence[object], start: int) -> None:
        self._blocks, self.start = tuple(chain[start:]), start

    def __getitem__(self, place: int) -> object:
        return self._blocks[place - self.start]

    def __len__(self) -> int:
        return self.start + len(self._blocks)

    def between(self, start: int, end: int) -> Sequence[object]:
        """Those from one place up to another."""
        return self._blocks[start - self.start : end - self.start]


class ServedStretch(Generic[R]):
    """Blocks `parent.end` up to `end` of `chain`, served together and parted by no prompt yet.

    `waiting` are the requests whose served blocks end here, by the block they need next (None where
    they end here altogether); `below` counts these and all further down. `served` is when the
    stretch was served last, as a count of servings.
    """

    __slots__ = (
        *("_count", "_line", "below", "chain", "children", "end", "parent", "served", "waiting"),
    )

    def __init__(
        self, chain: ServedBlocks, end: int, parent: "ServedStretch[R] | None", served: int
    ) -> None:
        self.chain = chain
        self.end = end
        self.parent = parent
        self.served = served
        self.below = 0
        self.children: dict[object, ServedStretch[R]] = {}
        self.waiting: dict[object, dict[Waiting[R], None]] = {}
        self._line: list[tuple[int, Waiting[R]]] = []
        self._count = 0

    @property
    def blocks(self) -> Sequence[object]:
        """The hashes of its own blocks."""
        return self.chain.between(self._start, self.end)

    def __len__(self) -> int:
        return self.end - self._start

    @property
    def path(self) -> Iterator["ServedStretch[R]"]:
        """This one and all above it, without the root."""
        node = self
        while node.parent is not None:
            yield node
            node = node.parent

    def add(self, entry: Waiting[R], next_block: object) -> None:
        """One more whose served blocks end here."""
        self.waiting.setdefault(next_block, {})[entry] = None
        self._count += 1
        heappush(self._line, (entry.seq, entry))

    def add_all(self, entries: Sequence[Waiting[R]], next_blocks: Iterable[object]) -> None:
        """The same of many, and of the block that each needs next."""
        for entry, block in zip(entries, next_blocks, strict=True):
            same = self.waiting.get(block)
            if same is None:
                same = self.waiting[block] = {}
            same[entry] = None
        self._count += len(entries)
        self._line += [(entry.seq, entry) for entry in entries]
        heapify(self._line)

    def discard(self, entry: Waiting[R], next_block: object) -> None:
        """One of them is not here any more."""
        same = self.waiting[next_block]
        del same[entry]
        if not same:
            del self.waiting[next_block]
        self._forget(1)

    def take(self, next_block: object) -> list[Waiting[R]]:
        """All that need this block next are here no more."""
        taken = list(self.waiting.pop(next_block, ()))
        self._forget(len(taken))
        return taken

    def _forget(self, gone: int) -> None:
        """Nothing may hold requests that wait no more: an engine has no end."""
        self._count -= gone
        if len(self._line) > 2 * self._count:
            self._line = [(entry.seq, entry) for same in self.waiting.values() for entry in same]
            heapify(self._line)

    def oldest(self, at: dict[Waiting[R], "ServedStretch[R]"]) -> Waiting[R] | None:
        """The oldest that is here, which `at` knows; None where nobody is."""
        while self._line and at.get(self._line[0][1]) is not self:
            heappop(self._line)
        return self._line[0][1] if self._line else None

    @property
    def _start(self) -> int:
        return 0 if self.parent is None else self.parent.end


class ServedTree(Generic[R]):
    """Served prompts, of which about `most_blocks` blocks are remembered, and who waits for them.

    A waiting request is filed at the end of what it shares with anything served. As hashes are
    chained, one comparison tells whether two prompts agree up to a block.
    """

    def __init__(self, most_blocks: int) -> None:
        self._most_blocks = most_blocks
        self._root: ServedStretch[R] = ServedStretch(ServedBlocks((), 0), 0, None, 0)
        self._of_block: dict[object, ServedStretch[R]] = {}
        self._at: dict[Waiting[R], ServedStretch[R]] = {}
        self._chains: dict[Waiting[R], Sequence[object]] = {}
        self._servings = 0
        self._filed_below = 0
        self._open_blocks = 0
        self._wanted_blocks = 0

    def __len__(self) -> int:
        """How many requests wait for a block that was served."""
        return self._filed_below

    @property
    def open_blocks(self) -> int:
        """How many blocks they need at least beyond those that were served."""
        return self._open_blocks

    @property
    def wanted_blocks(self) -> int:
        """How many served blocks somebody waits for, in the cache or not."""
        return self._wanted_blocks

    @property
    def contexts(self) -> int:
        """How many groups of requests begin alike as far as was served."""
        return len({id(stretch) for stretch in self._at.values()})

    def stretch_of(self, block: object) -> ServedStretch[R] | None:
        """Where a served block is, None for one that is not known."""
        return self._of_block.get(block)

    def where(self, entry: Waiting[R]) -> ServedStretch[R]:
        """Where a waiting request is filed. Raises KeyError for a strange one."""
        return self._at[entry]

    def waits(self, entry: Waiting[R], chain: Sequence[object]) -> None:
        """File a waiting request with the chained hashes of its prompt's full blocks."""
        self._chains[entry] = chain
        self._file(entry, chain)

    def leaves(self, entry: Waiting[R]) -> Sequence[object]:
        """It waits no more; its chain."""
        chain = self._chains[entry]
        self._unfile(entry, chain)
        del self._chains[entry]
        return chain

    def serve(self, chain: Sequence[object]) -> ServedStretch[R]:
        """A prompt was admitted: from now on others may share its blocks. Returns its end."""
        node = self._descend(chain)
        if node.end < len(chain):
            node = self._grow(node, chain)
        self._servings += 1
        for stretch in node.path:
            stretch.served = self._servings
        if len(self._of_block) > 2 * self._most_blocks:
            self._trim()
        return node

    def oldest_at_or_below(self, stretch: ServedStretch[R]) -> Waiting[R] | None:
        """The oldest filed here, else one from further down."""
        node: ServedStretch[R] | None = stretch
        while node is not None:
            entry = node.oldest(self._at)
            if entry is not None:
                return entry
            node = next((child for child in node.children.values() if child.below), None)
        return None

    def _file(self, entry: Waiting[R], chain: Sequence[object]) -> None:
        node = self._at[entry] = self._descend(chain)
        block = _next_block(chain, node)
        self._open_blocks -= self._open(node, block)
        node.add(entry, block)
        self._open_blocks += self._open(node, block)
        self._filed_below += node is not self._root
        self._count(node, 1)

    def _unfile(self, entry: Waiting[R], chain: Sequence[object]) -> None:
        node = self._at.pop(entry)
        block = _next_block(chain, node)
        self._open_blocks -= self._open(node, block)
        node.discard(entry, block)
        self._open_blocks += self._open(node, block)
        self._filed_below -= node is not self._root
        self._count(node, -1)

    def _count(
        self, node: ServedStretch[R], more: int, above: ServedStretch[R] | None = None
    ) -> None:
        """So many more wait for this stretch and those up to `above`."""
        for stretch in node.path:
            if stretch is above:
                return
            if not stretch.below:
                self._wanted_blocks += len(stretch)
            stretch.below += more
            if not stretch.below:
                self._wanted_blocks -= len(stretch)

    def _grow(self, node: ServedStretch[R], chain: Sequence[object]) -> ServedStretch[R]:
        """New blocks behind `node`; those who wait for the first of them move there."""
        edge, blocks = chain[node.end], ServedBlocks(chain, node.end)
        new = node.children[edge] = ServedStretch(blocks, len(chain), node, self._servings)
        for block in new.blocks:
            self._of_block[block] = new
        self._open_blocks -= self._open(node, edge)
        self._move(node.take(edge), node, new)
        return new

    def _move(
        self, entries: list[Waiting[R]], above: ServedStretch[R], new: ServedStretch[R]
    ) -> None:
        """File requests that share the first block of `new`, and how much more is to be seen."""
        ends: dict[int, list[Waiting[R]]] = {}
        other, chains = new.chain, self._chains
        end, first, last = above.end + 1, above.end + 1, len(other)
        for entry in entries:
            chain = chains[entry]
            if not _parts_at(chain, other, end):  # most part where the one before did
                end = agreement(chain, other, first, min(len(chain), last))
            ends.setdefault(end, []).append(entry)
        node = new
        for end, same in sorted(ends.items(), reverse=True):
            if end < node.end:
                node = self._part(node, end)
            self._move_all(same, above, node)

    def _move_all(
        self, same: list[Waiting[R]], above: ServedStretch[R], node: ServedStretch[R]
    ) -> None:
        """File requests that part here."""
        blocks = [_next_block(self._chains[entry], node) for entry in same]
        self._open_blocks -= sum(self._open(node, block) for block in set(blocks))
        node.add_all(same, blocks)
        self._open_blocks += sum(self._open(node, block) for block in set(blocks))
        self._at.update(dict.fromkeys(same, node))
        self._count(node, len(same), above)
        if above is self._root:
            self._filed_below += len(same)

    def _open(self, node: ServedStretch[R], block: object) -> int:
        """How many blocks those will take at least who need this one next, or None's.

        All that one of them needs, and of each its last: more may be shared.
        """
        same = node.waiting.get(block)
        if not same or node is self._root:
            return 0
        return len(self._chains[next(iter(same))]) - node.end + len(same)

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
        movers = [entry for same in leaf.waiting.values() for entry in same]
        for entry in movers:
            self._unfile(entry, self._chains[entry])
        del parent.children[leaf.chain[parent.end]]
        for block in leaf.blocks:
            self._of_block.pop(block, None)
        leaf.parent = None
        for entry in movers:
            self._file(entry, self._chains[entry])


def _next_block(chain: Sequence[object], node: ServedStretch[R]) -> object:
    """The first block behind what was served, None where there is none."""
    return chain[node.end] if node.end < len(chain) else None


def _parts_at(chain: Sequence[object], other: ServedBlocks, end: int) -> bool:
    """Whether two chains agree up to `end` blocks and no further."""
    if end > len(chain) or end > len(other) or chain[end - 1] != other[end - 1]:
        return False
    return end == len(chain) or end == len(other) or chain[end] != other[end]
