"""What goes out next, and when: users who wait for replies, or times at which requests are due.

As a swarm does it: in a closed loop each user takes what is next, waits for its replies and then as
long as it thinks; in an open one what is due goes out, to free users where their number is a cap. A
turn of a conversation is held back until the one before it has ended, and no user waits with it.
"""

import heapq
import math
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import chain, count, cycle

from loadgen.twin.ledger import TwinRequest

NO_USER = -1
"""Who sends what nobody was free to send, and everything in an open loop without a cap."""


@dataclass(frozen=True, slots=True)
class RequestFacts:
    """What `requests.csv` has of a request beside its times; as its columns."""

    context_id: str = ""
    question_id: str = ""
    batch_id: str = ""
    repeat: bool = False
    rag_context_id: str = ""
    label_correct: bool | None = None
    is_retrieved: bool = False
    worker: str = "0"
    user: str = ""
    label: str = ""
    kv_scope: str = ""


@dataclass(frozen=True, slots=True)
class SendUnit:
    """Requests that are sent together, a single one or a batch; `offsets_s` are from the first.

    `number` counts the units of a load from 0. `due_s` means something in an open loop, or where
    the pace keeps it. `session` is that of a conversation. `facts` are there of a load that nobody
    has sent yet. Those of `is_one_call` go to the same engine.
    """

    number: int
    requests: tuple[TwinRequest, ...]
    offsets_s: tuple[float, ...]
    due_s: float = 0.0
    session: str = ""
    facts: tuple[RequestFacts, ...] = ()
    is_one_call: bool = False


@dataclass(frozen=True, slots=True)
class Pace:
    """When units go out: `starts_s` is when each user begins, `gaps_s` how long users pause after
    a reply, one after the other and again.

    In an open loop users are a cap on what is under way; without any there is none. Users of a
    closed loop that `keeps_due` send nothing sooner than it was sent in a run. Nothing goes out
    from `end_s` on, and what is under way at `cut_s` is cut off.
    """

    is_open: bool = False
    starts_s: tuple[float, ...] = ()
    gaps_s: tuple[float, ...] = (0.0,)
    keeps_due: bool = False
    end_s: float = math.inf
    cut_s: float = math.inf


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A unit as it is sent: by whom, when it was meant to go, and when it goes."""

    unit: SendUnit
    user: int
    scheduled_s: float
    sent_s: float


@dataclass
class UnitSender:
    """Hands out the units of one load in the order of time. `unsent` is what was due and never
    went out; known at the end."""

    units: Iterable[SendUnit]
    pace: Pace
    unsent: list[Outgoing] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._left: Iterator[SendUnit] = iter(self.units)
        self._ahead: SendUnit | None = next(self._left, None)
        self._gaps = cycle(self.pace.gaps_s)
        self._turns = count()
        self._awake = [(at_s, next(self._turns), n) for n, at_s in enumerate(self.pace.starts_s)]
        heapq.heapify(self._awake)
        self._is_uncapped = self.pace.is_open and not self.pace.starts_s
        self._idle: deque[int] = deque()
        self._due: deque[SendUnit] = deque()
        self._held: dict[str, deque[SendUnit]] = {}

    @property
    def next_s(self) -> float:
        """When something may go out, whatever replies come; infinite where only they say."""
        found = min(self._due_s, self._user_s)
        return found if found < self.pace.end_s else math.inf

    def take(self) -> Outgoing | None:
        """What goes out at `next_s`; None where it is not to go yet."""
        if self._due_s <= self._user_s:
            at_s = self._due_s
            self._pull()
            return self._out(at_s)
        at_s, _, user = heapq.heappop(self._awake)
        while not self.pace.is_open and not self._due and self._ahead is not None:
            self._pull()
        self._idle.append(user)
        return self._out(at_s)

    def ended(self, sent: Outgoing, at_s: float) -> Outgoing | None:
        """The last reply of a unit came; what goes out because of it, at this moment."""
        if sent.user != NO_USER:
            waits_s = at_s + next(self._gaps)
            heapq.heappush(self._awake, (waits_s, next(self._turns), sent.user))
        held = self._held.get(sent.unit.session)
        if not held:
            self._held.pop(sent.unit.session, None)
            return None
        turn = held.popleft()
        self._due.append(replace(turn, due_s=max(turn.due_s, at_s)))
        return self._out(at_s) if at_s < self.pace.end_s else None

    def close(self) -> None:
        """Nothing goes out any more: what was due is `unsent`."""
        left = chain(self._due, *self._held.values()) if self.pace.is_open else ()
        self.unsent += [Outgoing(each, NO_USER, each.due_s, math.nan) for each in left]
        self._held, self._due = {}, deque()

    @property
    def _due_s(self) -> float:
        if not self.pace.is_open or self._ahead is None:
            return math.inf
        return self._ahead.due_s

    @property
    def _user_s(self) -> float:
        if not self._awake or (self._ahead is None and not self._due):
            return math.inf
        return self._awake[0][0]

    def _pull(self) -> None:
        """The next one is due, or held back behind the turns of its conversation."""
        unit, self._ahead = self._ahead, next(self._left, None)
        assert unit is not None
        if unit.session in self._held:
            self._held[unit.session].append(unit)
            return
        if unit.session:
            self._held[unit.session] = deque()
        self._due.append(unit)

    def _out(self, at_s: float) -> Outgoing | None:
        """The first that is due, where somebody is free to send it."""
        if not self._due or not (self._is_uncapped or self._idle):
            return None
        unit = self._due.popleft()
        user = NO_USER if self._is_uncapped else self._idle.popleft()
        sent_s = max(at_s, unit.due_s) if self.pace.is_open or self.pace.keeps_due else at_s
        return Outgoing(unit, user, unit.due_s if self.pace.is_open else sent_s, sent_s)
