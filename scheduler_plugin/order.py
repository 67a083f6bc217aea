"""The order of waiting requests: turns by context, bounded, first come first within each."""

import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import count
from typing import Generic, NamedTuple

from scheduler_plugin.choice import Choice
from scheduler_plugin.engine_view import EngineView, Nobody, Observer, Reason
from scheduler_plugin.group import Group, R, Waiting
from scheduler_plugin.group_line import GroupLine
from scheduler_plugin.grouping import Grouping
from scheduler_plugin.overtakes import Overtakes
from scheduler_plugin.reuse import ReuseChoice
from scheduler_plugin.roots import Roots
from scheduler_plugin.settings import OrderSettings

RECENT = 8
"""So many windows of last served groups are kept: their prefixes are the likeliest to be cached."""


class Offer(NamedTuple, Generic[R]):
    """The request that is next; `reason` is set where it would begin a turn."""

    entry: Waiting[R]
    reason: Reason | None


class ContextOrder(Generic[R]):
    """Waiting requests, of which `peek` shows the next and `pop` takes it.

    A popped request was either admitted or skipped. Which of the two is asked when the next call
    comes (`EngineView.is_admitted`): only then is it counted. A skipped one is `give_back` to its
    place. While one context has its turn its requests follow each other; a turn ends after
    `quantum` requests or when none of the context is left; whose turn is next, `Choice` knows.

    What could not run whatever there is room for (`EngineView.is_blocked`) keeps its place and is
    passed over: once a step (`look_again`) it is looked at whether it still is so.
    """

    def __init__(
        self,
        settings: OrderSettings,
        engine: EngineView[R],
        observer: Observer[R] | None = None,
        roots: Roots | None = None,
    ) -> None:
        """Orders of one engine share `roots`."""
        self._settings = settings
        self._engine = engine
        self._observer: Observer[R] = Nobody() if observer is None else observer
        self._seq = count()
        # Beyond what `Roots` remembers nobody looks for a prefix.
        recent = min(RECENT * settings.window, Roots.most)
        self._grouping: Grouping[R] = Grouping(settings.key, recent)
        self._line: GroupLine[R] = GroupLine(settings.window)
        self._first: deque[Waiting[R]] = deque()
        self._held: dict[R, Waiting[R]] = {}
        self._skipped: dict[R, Waiting[R]] = {}
        self._oldest_skipped = 0
        self._blocked: dict[R, Waiting[R]] = {}
        self._oldest_blocked = 0
        self._has_looked = False
        """At those that are blocked, in this step."""
        self._overtakes = Overtakes(limit=max(settings.max_overtakes, 10_000))
        roots = Roots() if roots is None else roots
        self._choice = Choice(
            settings=settings,
            engine=engine,
            line=self._line,
            grouping=self._grouping,
            overtakes=self._overtakes,
            roots=roots,
        )
        self._reuse: ReuseChoice[R] | None = None
        if settings.policy == "reuse":
            self._reuse = ReuseChoice(settings, engine, self._overtakes)
        self._offer: Offer[R] | None = None
        self._popped: Offer[R] | None = None
        self._has_skipped = False
        """The last popped request, and nothing has happened since."""
        self._turn: Group[R] | None = None
        self._turn_admitted = 0
        self._everyone: Group[R] = Group()

    def __len__(self) -> int:
        self._settle()
        return len(self._held) + len(self._blocked)

    def __iter__(self) -> Iterator[R]:
        """Those that go before all others, then the rest, first come first."""
        self._settle()
        here = (*self._held.values(), *self._blocked.values())
        rest = (entry for entry in here if entry.group is not None)
        line = [*self._first, *sorted(rest, key=lambda entry: entry.seq)]
        return (entry.request for entry in line)

    @property
    def is_idle(self) -> bool:
        """Whether nobody waits and nobody can be given back."""
        return not (len(self) or self._skipped)

    @property
    def is_open(self) -> bool:
        """Whether `peek` may show one that can run."""
        return bool(self._held) or (bool(self._blocked) and not self._has_looked)

    @property
    def has_ready(self) -> bool:
        """Whether `peek` shows one that can run."""
        if self._blocked and not self._has_looked:
            self._look()
        return bool(self._held)

    @property
    def contexts(self) -> int:
        """How many groups wait."""
        return len(self._line) if self._reuse is None else self._reuse.contexts

    def add(self, request: R, label: str | None, chain: Sequence[object]) -> None:
        """Take in a new request with its label and the chained hashes of its full blocks."""
        entry = self._enter(request)
        entry.root = chain[0] if chain else None
        group = self._group_of(label, chain)
        if self._engine.is_blocked(request):
            group.expect(entry)
            self._block(entry)
            return
        self._held[request] = entry
        group.add(entry)
        if self._reuse is None:
            self._line.file(group)
        else:
            self._reuse.waits(entry)

    def add_first(self, request: R) -> None:
        """Take in a request that goes before all others: a preempted one."""
        self._offer = None
        entry = self._held[request] = self._enter(request)
        self._first.appendleft(entry)

    def give_back(self, requests: Iterable[R]) -> None:
        """Take back skipped requests, the first of them last; a strange one goes to the front."""
        self._settle()
        self._offer, self._has_skipped = None, False
        joining: list[Waiting[R]] = []
        for request in requests:
            entry = self._skipped.pop(request, None)
            if entry is None:
                self.add_first(request)
            elif entry.group is None:
                self._held[request] = entry
                self._first.appendleft(entry)
            elif self._engine.is_blocked(request):
                self._block(entry)
            else:
                joining.append(entry)
        self._join_again(joining)
        self.look_again()

    def look_again(self) -> None:
        """A step of the engine is over: what was blocked may run in the next."""
        self._has_looked = False
        if self._reuse is not None:
            self._reuse.step_ended()

    def remove(self, requests: Iterable[R]) -> None:
        """Forget requests; those that are not here are passed over."""
        self._settle()
        self._offer, self._has_skipped = None, False
        for request in requests:
            entry = self._held.pop(request, None)
            if entry is not None:
                self._take_away(entry)
            else:
                entry = self._skipped.pop(request, None) or self._blocked.pop(request, None)
            if entry is not None and entry.group is not None:
                self._leave(entry.group)
        if any(entry.is_gone for entry in self._first):
            self._first = deque(entry for entry in self._first if not entry.is_gone)
        self._overtakes.forget_before(self._oldest_place())

    def peek(self) -> R:
        """The next request, chosen anew at each call; a blocked one where all are.

        Raises IndexError when nobody waits.
        """
        if self._popped is not None:
            self._settle()
        if self._held if not self._blocked else self.has_ready:
            self._offer = self._choose()
        elif self._blocked:
            self._offer = Offer(next(iter(self._blocked.values())), "oldest")
        else:
            raise IndexError("no request is waiting")
        return self._offer.entry.request

    def pop(self) -> R:
        """Take out what the last `peek` showed, whatever has happened to the cache since.

        Raises IndexError when nobody waits.
        """
        if self._offer is None:
            self.peek()
        offer, self._offer = self._offer, None
        assert offer is not None
        entry = offer.entry
        if entry.request in self._blocked:
            del self._blocked[entry.request]
        else:
            del self._held[entry.request]
            if entry.group is None:
                self._first.popleft()
            else:
                self._take(entry, entry.group)
        self._popped = offer
        return entry.request

    def _settle(self, newcomer: R | None = None) -> None:
        """Count the last popped request, or note that it was skipped.

        If it is the newcomer it was admitted, whatever has happened to it since.
        """
        if self._popped is not None:
            offer, self._popped = self._popped, None
            request = offer.entry.request
            self._conclude(offer, request is newcomer or self._engine.is_admitted(request))

    def _enter(self, request: R) -> Waiting[R]:
        """A place for a request; any that it still has is given up."""
        self._settle(request)
        self._has_skipped = False
        if request in self._held or request in self._skipped or request in self._blocked:
            self.remove([request])
        return Waiting(request, next(self._seq), self._engine.now_s())

    def _conclude(self, offer: Offer[R], is_admitted: bool) -> None:
        entry = offer.entry
        self._has_skipped = not is_admitted
        if not is_admitted:
            if not self._skipped or entry.seq < self._oldest_skipped:
                self._oldest_skipped = entry.seq
            self._skipped[entry.request] = entry
            return
        if entry.group is None:
            return  # it was admitted before, and counted then
        oldest = self._oldest_place()
        if self._reuse is None:
            self._choice.admitted(entry)
        else:
            self._reuse.admitted(entry)
        self._count_turn(entry.group, offer.reason)
        if oldest is not None and oldest < entry.seq:
            self._overtakes.admitted(entry.seq)
        self._leave(entry.group)
        self._overtakes.forget_before(oldest)
        most = 0 if oldest is None else self._overtakes.of(oldest)
        self._observer.admitted(entry.request, self._engine.now_s() - entry.arrived_s, most)

    def _block(self, entry: Waiting[R]) -> None:
        if not self._blocked or entry.seq < self._oldest_blocked:
            self._oldest_blocked = entry.seq
        self._blocked[entry.request] = entry

    def _look(self) -> None:
        """Whoever can run now joins the others, at the place of his arrival."""
        self._has_looked = True
        is_blocked = self._engine.is_blocked
        ready = [entry for request, entry in self._blocked.items() if not is_blocked(request)]
        for entry in ready:
            del self._blocked[entry.request]
        self._oldest_blocked = min((entry.seq for entry in self._blocked.values()), default=0)
        self._join_again(ready)

    def _join_again(self, entries: Sequence[Waiting[R]]) -> None:
        by_group: dict[Group[R], list[Waiting[R]]] = {}
        for entry in entries:
            self._held[entry.request] = entry
            assert entry.group is not None
            by_group.setdefault(entry.group, []).append(entry)
        for group, those in by_group.items():
            group.give_back(those)
            if self._reuse is None:
                self._line.file(group)
        if self._reuse is not None:
            for entry in entries:
                self._reuse.waits(entry)

    def _take_away(self, entry: Waiting[R]) -> None:
        """Take a held one out of the lines."""
        if entry.group is None:
            entry.is_gone = True
        else:
            self._take(entry, entry.group)

    def _take(self, entry: Waiting[R], group: Group[R]) -> None:
        group.take(entry)
        if self._reuse is None:
            self._line.file(group)
        else:
            self._reuse.leaves(entry)

    def _leave(self, group: Group[R]) -> None:
        group.members -= 1
        if not group.members:
            self._grouping.drop_if_empty(group)

    def _oldest_place(self) -> int | None:
        """The place of the oldest that waits, is blocked or was skipped, or below it if that was
        removed."""
        head = self._everyone.head
        place = self._line.oldest_place if head is None else head.seq
        if self._skipped and (place is None or self._oldest_skipped < place):
            place = self._oldest_skipped
        if self._blocked and (place is None or self._oldest_blocked < place):
            place = self._oldest_blocked
        return place

    def _count_turn(self, group: Group[R], reason: Reason | None) -> None:
        if reason is not None:
            if self._turn is not None:
                self._observer.turn_ended(self._turn_admitted)
            self._turn, self._turn_admitted = group, 0
            self._grouping.served(group)
            self._observer.turn_began(reason)
        self._turn_admitted += 1

    def _group_of(self, label: str | None, chain: Sequence[object]) -> Group[R]:
        if self._reuse is not None or self._settings.policy == "fcfs":
            return self._everyone
        return self._grouping.group_of(label, chain)

    def _choose(self) -> Offer[R]:
        if self._first:
            return Offer(self._first[0], None)
        turn = None if self._reuse is not None else self._turn
        if turn is not None and turn.filed is not None and self._goes_on(turn):
            return Offer(_head(turn), None)
        began_s = time.perf_counter()
        offer = self._choose_anew()
        self._observer.chosen(time.perf_counter() - began_s)
        return offer

    def _choose_anew(self) -> Offer[R]:
        if self._reuse is not None:
            oldest = _head(self._everyone)
            if self._choice.is_calm():
                return Offer(oldest, "oldest")
            after_skip, self._has_skipped = self._has_skipped, False
            return Offer(*self._reuse.next(oldest, after_skip))
        group, reason = self._choice.next_group()
        return Offer(_head(group), reason)

    def _goes_on(self, turn: Group[R]) -> bool:
        return self._turn_admitted < self._settings.quantum and not self._choice.is_calm()


def _head(group: Group[R]) -> Waiting[R]:
    head = group.head
    assert head is not None  # a group is in the line only while it has one
    return head
