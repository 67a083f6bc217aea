"""The order of waiting requests: turns by context, bounded, first come first within each."""

import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import merge
from itertools import chain as concatenate
from itertools import count
from typing import Generic

from scheduler_plugin.engine_view import EngineView, Nobody, Observer, Reason
from scheduler_plugin.group import Group, R, Waiting
from scheduler_plugin.group_line import GroupLine
from scheduler_plugin.grouping import Grouping
from scheduler_plugin.overtakes import Overtakes
from scheduler_plugin.settings import OrderSettings


@dataclass(frozen=True, slots=True)
class Offer(Generic[R]):
    """The request that is next; `reason` is set where it would begin a turn."""

    entry: Waiting[R]
    reason: Reason | None


class ContextOrder(Generic[R]):
    """Waiting requests, of which `peek` shows the next and `pop` takes it.

    A popped request was either admitted or skipped. Which of the two is asked when the next call
    comes (`EngineView.is_admitted`): only then is it counted. A skipped one is `give_back` to its
    place. While one context has its turn its requests follow each other; a turn ends after
    `quantum` requests or when none of the context is left.

    With policy `prefix-group` the context of the oldest request is next; with `lpm` the one whose
    prefix is longest in the cache, among the `window` oldest and the last served ones, unless the
    oldest request is overdue.
    """

    def __init__(
        self,
        settings: OrderSettings,
        engine: EngineView[R],
        observer: Observer[R] | None = None,
    ) -> None:
        self._settings = settings
        self._engine = engine
        self._observer: Observer[R] = Nobody() if observer is None else observer
        self._seq = count()
        self._grouping: Grouping[R] = Grouping(settings.key, recent=settings.window)
        self._line: GroupLine[R] = GroupLine(settings.window)
        self._first: deque[Waiting[R]] = deque()
        self._held: dict[R, Waiting[R]] = {}
        self._skipped: dict[R, Waiting[R]] = {}
        self._overtakes = Overtakes()
        self._offer: Offer[R] | None = None
        self._popped: Offer[R] | None = None
        self._turn: Group[R] | None = None
        self._turn_admitted = 0
        self._everyone: Group[R] = Group()

    def __len__(self) -> int:
        self._settle()
        return len(self._held)

    def __iter__(self) -> Iterator[R]:
        """Those that go before all others, then the rest, first come first."""
        self._settle()
        lines = [group for group in dict.fromkeys(e.group for e in self._held.values()) if group]
        rest = merge(*lines, key=lambda entry: entry.seq)
        return (entry.request for entry in concatenate(tuple(self._first), rest))

    @property
    def contexts(self) -> int:
        """How many groups wait."""
        return len(self._line)

    def add(self, request: R, label: str | None, chain: Sequence[object]) -> None:
        """Take in a new request with its label and the chained hashes of its full blocks."""
        self._settle()
        entry = Waiting(request, next(self._seq), self._engine.now_s())
        self._held[request] = entry
        group = self._group_of(label, chain)
        group.add(entry)
        self._line.file(group)

    def add_first(self, request: R) -> None:
        """Take in a request that goes before all others: a preempted one."""
        self._settle()
        self._offer = None
        entry = Waiting(request, next(self._seq), self._engine.now_s())
        self._held[request] = entry
        self._first.appendleft(entry)

    def give_back(self, requests: Iterable[R]) -> None:
        """Take back skipped requests, the first of them last; a strange one goes to the front."""
        self._settle()
        self._offer = None
        for request in requests:
            entry = self._skipped.pop(request, None)
            if entry is None:
                self.add_first(request)
                continue
            self._held[request] = entry
            if entry.group is None:
                self._first.appendleft(entry)
            else:
                entry.group.give_back(entry)
                self._line.file(entry.group)

    def remove(self, requests: Iterable[R]) -> None:
        """Forget requests; those that are not here are passed over."""
        self._settle()
        self._offer = None
        for request in requests:
            entry = self._held.pop(request, None) or self._skipped.pop(request, None)
            if entry is None:
                continue
            entry.is_gone = True
            if entry.group is None:
                self._first = deque(e for e in self._first if e is not entry)
            else:
                self._leave(entry.group)
        self._forget_overtakes()

    def peek(self) -> R:
        """The next request, chosen anew at each call. Raises IndexError when nobody waits."""
        self._settle()
        if not self._held:
            raise IndexError("no request is waiting")
        self._offer = self._choose()
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
        if entry.group is None:
            self._first.popleft()
        else:
            entry.group.take()
            self._line.file(entry.group)
        del self._held[entry.request]
        self._popped = offer
        return entry.request

    def _settle(self) -> None:
        """Count the last popped request, or note that it was skipped."""
        if self._popped is None:
            return
        offer, self._popped = self._popped, None
        entry = offer.entry
        if not self._engine.is_admitted(entry.request):
            self._skipped[entry.request] = entry
            return
        if entry.group is not None:
            self._count_turn(entry.group, offer.reason)
            self._overtakes.admitted(entry.seq)
            self._leave(entry.group)
        oldest = self._forget_overtakes()
        most = 0 if oldest is None else self._overtakes.of(oldest)
        self._observer.admitted(entry.request, self._engine.now_s() - entry.arrived_s, most)

    def _leave(self, group: Group[R]) -> None:
        group.leave()
        self._line.file(group)
        self._grouping.drop_if_empty(group)

    def _forget_overtakes(self) -> int | None:
        """Drop what overtook nobody who still waits; returns the oldest place."""
        oldest = self._line.oldest
        places = [entry.seq for entry in self._skipped.values() if entry.group is not None]
        if oldest is not None and oldest.filed is not None:
            places.append(oldest.filed)
        place = min(places, default=None)
        self._overtakes.forget_before(place)
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
        if self._settings.policy == "fcfs":
            return self._everyone
        return self._grouping.group_of(label, chain)

    def _choose(self) -> Offer[R]:
        if self._first:
            return Offer(self._first[0], None)
        turn = self._turn
        if turn is not None and turn.filed is not None and self._goes_on(turn):
            return Offer(_head(turn), None)
        began_s = time.perf_counter()
        group, reason = self._next_group()
        self._observer.chosen(time.perf_counter() - began_s)
        return Offer(_head(group), reason)

    def _goes_on(self, turn: Group[R]) -> bool:
        return self._turn_admitted < self._settings.quantum and not self._is_calm()

    def _is_calm(self) -> bool:
        """Whether the cache has room, so that order gains nothing."""
        least = self._settings.min_kv_usage
        return least > 0 and self._engine.kv_usage() < least

    def _next_group(self) -> tuple[Group[R], Reason]:
        oldest = self._line.oldest
        assert oldest is not None
        if self._settings.policy != "lpm" or self._is_calm():
            return oldest, "oldest"
        overdue = self._overdue(_head(oldest))
        if overdue is not None:
            return oldest, overdue
        return self._most_resident(oldest)

    def _overdue(self, entry: Waiting[R]) -> Reason | None:
        settings = self._settings
        if self._overtakes.of(entry.seq) >= settings.max_overtakes:
            return "overtakes"
        if settings.max_wait_s is None:
            return None
        waited_s = self._engine.now_s() - entry.arrived_s
        return "wait" if waited_s >= settings.max_wait_s else None

    def _most_resident(self, oldest: Group[R]) -> tuple[Group[R], Reason]:
        best, most = oldest, 0
        resident_blocks = self._engine.resident_blocks
        for group in concatenate(self._line, self._line.beyond(self._grouping.recent)):
            resident = resident_blocks(_head(group).request)
            if resident > most:
                best, most = group, resident
        return best, "resident" if most else "oldest"


def _head(group: Group[R]) -> Waiting[R]:
    head = group.head
    assert head is not None  # a group is in the line only while it has one
    return head
