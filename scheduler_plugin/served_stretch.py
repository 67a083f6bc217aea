"""Stretches of served prompts, and the requests that wait for them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush, heapreplace
from typing import Generic

from scheduler_plugin.group import R, Waiting


class ServedBlocks:
    """The blocks of a chain from `start` on, by their places in the whole chain: those before are
    another stretch's, and are not kept twice."""

    __slots__ = ("kept", "start")

    def __init__(self, chain: Sequence[object], start: int) -> None:
        self.kept, self.start = tuple(chain[start:]), start

    def __getitem__(self, place: int) -> object:
        return self.kept[place - self.start]

    def __len__(self) -> int:
        return self.start + len(self.kept)

    def between(self, start: int, end: int) -> Sequence[object]:
        """Those from one place up to another."""
        return self.kept[start - self.start : end - self.start]


class Alike(Generic[R]):
    """Waiting requests whose prompts have the same full blocks, `chain`; so all are filed `at` the
    same `edge` of it, once a stretch has taken them in."""

    __slots__ = ("_chains", "_line", "at", "chain", "edge")

    at: "ServedStretch[R]"
    edge: "Edge[R]"

    def __init__(self, entry: Waiting[R], chain: Sequence[object]) -> None:
        self.chain = chain
        self._chains: dict[Waiting[R], Sequence[object]] = {entry: chain}
        self._line = [(entry.seq, entry)]

    def __len__(self) -> int:
        return len(self._chains)

    @property
    def next_block(self) -> object:
        """The first block behind what was served, None where there is none."""
        return self.next_block_of(self.at)

    @property
    def oldest(self) -> Waiting[R]:
        """The one that came first. Raises IndexError where nobody is left."""
        line = self._line
        while line[0][1] not in self._chains:
            heappop(line)
        return line[0][1]

    def next_block_of(self, stretch: "ServedStretch[R]") -> object:
        """The first block behind this stretch, None where there is none."""
        return self.chain[stretch.end] if stretch.end < len(self.chain) else None

    def add(self, entry: Waiting[R], chain: Sequence[object]) -> None:
        """One more."""
        self._chains[entry] = chain
        heappush(self._line, (entry.seq, entry))

    def clear(self) -> None:
        """Nobody of them waits any more."""
        self._chains.clear()
        self._line.clear()

    def discard(self, entry: Waiting[R]) -> Sequence[object]:
        """One of several waits no more; its chain."""
        chain = self._chains.pop(entry)
        if chain is self.chain:
            self.chain = next(reversed(self._chains.values()))  # the other goes on with its request
        if len(self._line) > 2 * len(self._chains):
            self._line = [(entry.seq, entry) for entry in self._chains]
            heapify(self._line)
        return chain


@dataclass(slots=True)
class Edge(Generic[R]):
    """Who needs the same block next: `count` requests."""

    alike: dict[Alike[R], None] = field(default_factory=dict)
    count: int = 0


class ServedStretch(Generic[R]):
    """Blocks `parent.end` up to `end` of `chain`, served together and parted by no prompt yet.

    `waiting` are the requests whose served blocks end here, by the block they need next (None where
    they end here altogether); `below` counts these and all further down. `served` is when the
    stretch was served last, as a count of servings.
    """

    __slots__ = (
        *("_alike", "_line", "below", "chain", "children", "end", "parent", "served", "waiting"),
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
        self.waiting: dict[object, Edge[R]] = {}
        self._line: list[tuple[int, int, Alike[R]]] = []
        self._alike = 0

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

    def open_blocks(self, block: object) -> int:
        """How many blocks those will take at least who need this one next, or None's.

        All that one of them needs, and of each its last: more may be shared.
        """
        edge = self.waiting.get(block)
        if edge is None or self.parent is None:
            return 0
        return len(next(iter(edge.alike)).chain) - self.end + edge.count

    def add(self, several: Sequence[Alike[R]]) -> None:
        """More whose served blocks end here."""
        for alike in several:
            block = alike.next_block_of(self)
            edge = self.waiting.get(block)
            if edge is None:
                edge = self.waiting[block] = Edge()
            alike.at, alike.edge = self, edge
            edge.alike[alike] = None
            edge.count += len(alike)
        self._alike += len(several)
        if len(several) == 1:
            heappush(self._line, _standing(several[0]))
        else:
            self._line += map(_standing, several)
            heapify(self._line)

    def has_older(self, alike: Alike[R]) -> None:
        """Of those that are filed here a new one came before the others."""
        heappush(self._line, _standing(alike))
        self._tidy()

    def discard(self, alike: Alike[R]) -> None:
        """Those are not here any more."""
        edge = alike.edge
        del edge.alike[alike]
        edge.count -= len(alike)
        if not edge.alike:
            del self.waiting[alike.next_block_of(self)]
        self._alike -= 1
        self._tidy()

    def take(self, next_block: object) -> list[Alike[R]]:
        """All that need this block next are here no more."""
        taken = list(self.waiting.pop(next_block).alike)
        self._alike -= len(taken)
        self._tidy()
        return taken

    def oldest(self) -> Waiting[R] | None:
        """The oldest that is here; None where nobody is."""
        line = self._line
        while line:
            seq, _, alike = line[0]
            if alike.at is not self or not len(alike):
                heappop(line)
                continue
            oldest = alike.oldest
            if oldest.seq == seq:
                return oldest
            heapreplace(line, (oldest.seq, id(alike), alike))
        return None

    def _tidy(self) -> None:
        """Nothing may hold requests that wait no more: an engine has no end."""
        if len(self._line) > 2 * self._alike:
            here = (alike for edge in self.waiting.values() for alike in edge.alike)
            self._line = [_standing(alike) for alike in here]
            heapify(self._line)

    @property
    def _start(self) -> int:
        return 0 if self.parent is None else self.parent.end


def _standing(alike: Alike[R]) -> tuple[int, int, Alike[R]]:
    """By the age of the oldest; the number keeps requests from being compared."""
    return alike.oldest.seq, id(alike), alike
