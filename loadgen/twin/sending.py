"""What goes out next, and when: users who wait for replies, or times at which requests are due.

As a swarm does it: in a closed loop each user takes what is next, waits for its replies and then as
long as it thinks; in an open one what is due goes out, to free users where their number is a cap. A
turn of a conversation waits for the one before it.
"""

import heapq
import math
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import count, cycle

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


@dataclass(frozen=True, slots=True)
class SendUnit:
    """Requests that are sent together, a single one or a batch; `offsets_s` are from the first.

    `number` counts the units of a load from 0. `due_s` means something in an open loop. `session`
    is that of a conversation. `facts` are there of a load that nobody has sent yet.
    """

    number: int
    requests: tuple[TwinRequest, ...]
    offsets_s: tuple[float, ...]
    due_s: float = 0.0
    session: str = ""
    facts: tuple[RequestFacts, ...] = ()


@dataclass(frozen=True, slots=True)
class Pace:
    """When units go out: `starts_s` is when each user begins, `gaps_s` how long users pause after
    a reply, one after the other and again.

    In an open loop users are a cap on what is under way; without any there is none. Nothing goes
    out from `end_s` on, and what is under way at `cut_s` is cut off.
    """

    is_open: bool = False
    starts_s: tuple[float, ...] = ()
    gaps_s: tuple[float, ...] = (0.0,)
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
        self._is_capped = self.pace.is_open and bool(self.pace.starts_s)
        self._idle: deque[int] = deque()
        self._due: deque[SendUnit] = deque()
        self._latest: dict[str, int] = {}
        self._behind: dict[int, Outgoing] = {}

    @property
    def next_s(self) -> float:
        """When something may go out, whatever replies come; infinite where only they say."""
        found = min(self._due_s, self._user_s)
        return found if found < self.pace.end_s else math.inf

    def take(self) -> Outgoing | None:
        """What goes out at `next_s`; None where it is not to go yet."""
        if self._due_s <= self._user_s:
            return self._release()
        at_s, _, user = heapq.heappop(self._awake)
        if not self.pace.is_open:
            return self._gated(Outgoing(self._pulled(), user, at_s, at_s))
        if self._due:
            unit = self._due.popleft()
            return self._gated(Outgoing(unit, user, unit.due_s, at_s))
        self._idle.append(user)
        return None

    def ended(self, sent: Outgoing, at_s: float) -> Outgoing | None:
        """The last reply of a unit came; what goes out because of it, at this moment."""
        if sent.user != NO_USER:
            waits_s = at_s + next(self._gaps)
            heapq.heappush(self._awake, (waits_s, next(self._turns), sent.user))
        session, number = sent.unit.session, sent.unit.number
        if session and self._latest.get(session) == number:
            del self._latest[session]
        behind = self._behind.pop(number, None)
        if behind is None:
            return None
        if at_s >= self.pace.end_s:
            self.unsent.append(behind)
            return None
        return replace(behind, scheduled_s=max(behind.scheduled_s, at_s), sent_s=at_s)

    def close(self) -> None:
        """Nothing goes out any more: what was due is `unsent`."""
        self.unsent += self._behind.values()
        self.unsent += [Outgoing(each, NO_USER, each.due_s, math.nan) for each in self._due]
        self._behind, self._due = {}, deque()

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

    def _release(self) -> Outgoing | None:
        unit = self._pulled()
        if not self._is_capped:
            return self._gated(Outgoing(unit, NO_USER, unit.due_s, unit.due_s))
        if not self._idle:
            self._due.append(unit)
            return None
        return self._gated(Outgoing(unit, self._idle.popleft(), unit.due_s, unit.due_s))

    def _pulled(self) -> SendUnit:
        unit, self._ahead = self._ahead, next(self._left, None)
        assert unit is not None
        return unit

    def _gated(self, outgoing: Outgoing) -> Outgoing | None:
        """A turn of a conversation waits for the one before it."""
        session, number = outgoing.unit.session, outgoing.unit.number
        if not session:
            return outgoing
        before = self._latest.get(session)
        self._latest[session] = number
        if before is None:
            return outgoing
        self._behind[before] = outgoing
        return None
