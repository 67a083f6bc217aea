"""Who is next so that nothing is evicted that somebody waits for: policy `reuse`."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Generic, NamedTuple

from scheduler_plugin.engine_view import EngineView, Reason
from scheduler_plugin.group import R, Waiting
from scheduler_plugin.overtakes import Overtakes
from scheduler_plugin.served_stretch import ServedStretch
from scheduler_plugin.served_tree import ServedTree
from scheduler_plugin.settings import OrderSettings

OVERTAKEN_SHARE = 0.5
"""Of as many as waited when a request came, it may be overtaken by so many younger ones, if these
are more than `max_overtakes`."""
TRIED = 8
"""So many candidates are looked at for one that evicts less than the oldest would."""
GOES_ON = 8
"""After a choice so many more of the same prefix may follow before it is thought over."""
AHEAD_BLOCKS = 256
"""Of what others will take so many blocks are looked at."""
SPARE_BLOCKS = 128
"""So many blocks more than a choice needed are looked at, to know how many admissions are safe."""
RUN_BLOCKS = 64
"""Longer runs of blocks are read in parts."""

Lost = dict[ServedStretch[R], int]
"""How many blocks that somebody waits for an admission would evict, by where they are."""
Run = tuple[ServedStretch[R] | None, int]
"""So many blocks one after the other of the same stretch; None for what nobody waits for."""


class PrefixTurn(NamedTuple, Generic[R]):
    """A request that went before the oldest, at its prefix; more of that prefix may follow."""

    stretch: ServedStretch[R]
    oldest: Waiting[R]
    left: int


class ReuseChoice(Generic[R]):
    """The oldest request, unless its admission evicts blocks that others who wait would reuse.

    Then one of those others goes first: the one with the longest prefix in the cache, if its own
    admission evicts fewer such blocks. What the others will take that find a seat at once counts
    too, so that no more contexts are begun than the cache can hold until they are done. So a
    request is overtaken only for tokens that would be computed again otherwise; where nothing
    that somebody waits for would be evicted, the order is first come, first served.
    """

    def __init__(
        self, settings: OrderSettings, engine: EngineView[R], overtakes: Overtakes
    ) -> None:
        self._settings = settings
        self._engine = engine
        self._overtakes = overtakes
        self._tree: ServedTree[R] = ServedTree(engine.cache_blocks())
        self._per_block = engine.per_block()
        self._running: dict[R, ServedStretch[R]] = {}
        self._last: ServedStretch[R] | None = None
        self._turn: PrefixTurn[R] | None = None
        self._was_admitted = False
        self._freed: Freed[R] | None = None
        self._spare_blocks = self._were_free = 0
        self._waiting = 0
        self._came: list[Waiting[R]] = []

    @property
    def contexts(self) -> int:
        """How many groups of waiting requests begin alike, as far as was served."""
        return self._tree.contexts

    def waits(self, entry: Waiting[R]) -> None:
        """A request came, or came back."""
        self._freed = None
        self._spare_blocks = 0
        self._waiting += 1
        if not entry.crowd:
            self._came.append(entry)
        hashes = self._engine.chain_of(entry.request)
        resident = self._engine.resident_blocks(entry.request, 0) if hashes else 0
        if resident and self._tree.stretch_of(hashes[resident - 1]) is None:
            self._tree.serve(hashes[:resident])
        self._tree.waits(entry, hashes)

    def leaves(self, entry: Waiting[R]) -> None:
        """It waits no more: it was taken, or is given up."""
        self._note_crowd()
        self._tree.leaves(entry)
        self._waiting -= 1

    def _note_crowd(self) -> None:
        """Those who came since somebody was chosen or left came together."""
        if self._came:
            for each in self._came:
                each.crowd = self._waiting
            self._came.clear()

    def step_ended(self) -> None:
        """Blocks are given and freed that no admission tells of."""
        self._spare_blocks = 0

    def admitted(self, entry: Waiting[R]) -> None:
        """Its blocks are in the cache now, or will be."""
        self._was_admitted = True
        hashes = self._engine.chain_of(entry.request)
        if not hashes:
            return
        self._last = self._running[entry.request] = self._tree.serve(hashes)
        running = self._engine.running_requests()
        if len(self._running) > 2 * len(running) + 16:
            running = set(running)
            self._running = {r: at for r, at in self._running.items() if r in running}

    def next(
        self, oldest: Waiting[R], after_skip: bool = False
    ) -> tuple[Waiting[R], Reason | None]:
        """The next of those that wait, and why; no reason where it goes on from the last.

        Where the last one was only skipped, no block was given or freed since.
        """
        if not after_skip:
            self._freed = None
        self._note_crowd()
        overdue = self._overdue(oldest)
        if overdue is not None:
            return oldest, overdue
        if not self._tree.sharers:  # nobody waits for anything that was served
            self._turn, self._was_admitted = None, False
            return oldest, "oldest"
        entry = self._follower(oldest)
        if entry is None:
            entry = self._chosen(oldest)
            path = self._tree.where(entry)
            self._turn = None if entry is oldest else PrefixTurn(path, oldest, GOES_ON)
        self._was_admitted = False
        if self._goes_on(entry):
            return entry, None
        return entry, "oldest" if entry is oldest else "resident"

    def _overdue(self, entry: Waiting[R]) -> Reason | None:
        settings = self._settings
        overtaken = self._overtakes.of(entry.seq)
        if overtaken:
            crowd = min(OVERTAKEN_SHARE * entry.crowd, self._overtakes.limit)
            if overtaken >= max(settings.max_overtakes, crowd):
                return "overtakes"
        if settings.max_wait_s is None:
            return None
        waited_s = self._engine.now_s() - entry.arrived_s
        return "wait" if waited_s >= settings.max_wait_s else None

    def _follower(self, oldest: Waiting[R]) -> Waiting[R] | None:
        """One more of the prefix that was chosen, right after the last was admitted."""
        turn, self._turn = self._turn, None
        if turn is None or not (self._was_admitted and turn.left and turn.oldest is oldest):
            return None
        self._turn = PrefixTurn(turn.stretch, turn.oldest, turn.left - 1)
        return self._tree.oldest_at_or_below(turn.stretch)

    def _goes_on(self, entry: Waiting[R]) -> bool:
        at, last = self._tree.where(entry), self._last
        return last is not None and at.parent is not None and at in last.path

    def _chosen(self, oldest: Waiting[R]) -> Waiting[R]:
        if self._is_spare(oldest):
            return oldest
        if self._freed is None:
            self._freed = Freed(self._engine, self._tree, self._running)
        freed = self._freed
        at = self._tree.where(oldest)
        resident = self._engine.resident_blocks(oldest.request, 0) if at.end else 0
        lost = self._lost(oldest, resident, freed, None)
        if lost:
            return self._saved(lost, freed) or oldest
        self._spare_blocks = freed.spare_blocks(self._most_taken(oldest))
        self._were_free = self._engine.free_blocks()
        return oldest

    def _is_spare(self, entry: Waiting[R]) -> bool:
        """Whether nobody waits for any of the blocks that its admission could take."""
        if not self._spare_blocks:
            return False
        engine = self._engine
        left = self._spare_blocks - max(0, self._were_free - engine.free_blocks())
        left -= engine.blocks_of(entry.request) + engine.reserved_blocks()
        return self._per_block * self._tree.open_blocks <= left or self._come() <= left

    def _most_taken(self, entry: Waiting[R]) -> int:
        """No more blocks than these are looked at for an admission."""
        engine = self._engine
        return engine.blocks_of(entry.request) + engine.reserved_blocks() + self._come()

    def _saved(self, lost: Lost[R], freed: "Freed[R]") -> Waiting[R] | None:
        """The one that would lose most, if it can go without the same loss to others."""
        most = sum(lost.values())
        found = {self._tree.oldest_at_or_below(stretch) for stretch in lost}
        ranked = sorted(
            ((self._engine.resident_blocks(e.request, 0), -e.seq, e) for e in found if e),
            key=lambda each: each[:2],
            reverse=True,
        )
        for resident, _, entry in ranked[:TRIED]:
            if resident and sum(self._lost(entry, resident, freed, most).values()) < most:
                return entry
        return None

    def _lost(
        self, entry: Waiting[R], resident: int, freed: "Freed[R]", enough: int | None
    ) -> Lost[R]:
        """What others wait for and this admission would evict; counts to `enough` only."""
        path = [stretch for stretch in self._tree.where(entry).path if stretch.below]
        if sum(map(len, path)) == self._tree.wanted_blocks:
            return {}
        left = self._engine.blocks_of(entry.request, resident)
        left += freed.reserved + self._to_come(path)
        lost: Lost[R] = {}
        counted = 0
        for stretch, blocks in freed.runs():
            if left <= 0 or (enough is not None and counted >= enough):
                return lost
            if stretch in path:
                continue
            if stretch is not None and stretch.below:
                taken = min(left, blocks)
                lost[stretch] = lost.get(stretch, 0) + taken
                counted += taken
            left -= blocks
        return lost

    def _to_come(self, path: Sequence[ServedStretch[R]]) -> int:
        """Blocks that others will take who wait for what was served and find a seat at once.

        What of the `path` of a request nobody else waits for will be room for them.
        """
        come = self._come()
        room = sum(len(stretch) for stretch in path if stretch.below == 1)
        return max(0, come - self._per_block * room)

    def _come(self) -> int:
        waiting, blocks = self._tree.sharers, self._per_block * self._tree.open_blocks
        seats = self._engine.free_seats() - 1 if waiting else 0
        if seats < waiting:
            blocks = blocks * seats // waiting if seats > 0 else 0
        return min(blocks, AHEAD_BLOCKS)


class Freed(Generic[R]):
    """The blocks that admissions will be given, in this order.

    First those that nobody holds, then those of what runs. Read as far as somebody asks, and once.
    """

    def __init__(
        self, engine: EngineView[R], tree: ServedTree[R], running: Mapping[R, ServedStretch[R]]
    ) -> None:
        """`running` knows where the prompts of requests end that run."""
        self.reserved = engine.reserved_blocks()
        self._engine = engine
        self._tree = tree
        self._running = running
        self._runs: list[Run[R]] = []
        self._source = chain(self._free(), self._released())

    def runs(self) -> Iterator[Run[R]]:
        """Where they are and how many."""
        yield from self._runs
        for run in self._source:
            self._runs.append(run)
            yield run

    def spare_blocks(self, least: int) -> int:
        """How many are given before the first that somebody waits for, as far as is known with a
        few more; 0 where that cannot be as many as `least`."""
        known, count = SPARE_BLOCKS + sum(blocks for _, blocks in self._runs), 0
        if known < least:
            return 0
        for stretch, blocks in self.runs():
            if count >= known or (stretch is not None and stretch.below):
                break
            count += blocks
        return count

    def _free(self) -> Iterator[Run[R]]:
        of, count = None, 0
        for stretch in map(self._tree.stretch_of, self._engine.next_freed()):
            if stretch is not None and not stretch.below:
                stretch = None
            if stretch is not of or count == RUN_BLOCKS:
                yield of, count
                of, count = stretch, 0
            count += 1
        yield of, count

    def _released(self) -> Iterator[Run[R]]:
        """Those of what runs, as if it ended one by one, the oldest first."""
        running = []
        per_block = self._engine.per_block()
        held: Counter[ServedStretch[R]] = Counter()
        for request in self._engine.running_requests():
            end = self._running.get(request)
            path = () if end is None else tuple(each for each in end.path if each.below)
            held.update(path)
            running.append((request, path))
        for request, path in running:
            own = self._engine.blocks_of(request) - per_block * sum(map(len, path))
            yield None, max(1, own)
            for stretch in path:
                held[stretch] -= 1
                if not held[stretch]:
                    yield stretch, per_block * len(stretch)
