"""A load on virtual engines, with what stands before and behind them."""

import heapq
import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from loadgen.errors import UsageError
from loadgen.twin.decoding import LeanEngine
from loadgen.twin.engine import STEPS_WITHOUT_TOKENS, EngineShape, VirtualEngine
from loadgen.twin.ledger import EngineLedger, ServedTokens, TwinRequest
from loadgen.twin.model import FrontTime
from loadgen.twin.routing import ONE_ENGINE, Fleet, Router
from loadgen.twin.sending import Outgoing, Pace, RequestFacts, SendUnit, UnitSender
from loadgen.twin.step_time import StepTime


class OfferedLoad(Protocol):
    """What is sent, and when."""

    @property
    def units(self) -> Iterable[SendUnit]:
        """In the order of the stream."""

    @property
    def pace(self) -> Pace:
        """When each goes out."""


@dataclass(frozen=True, slots=True)
class ServedRequest:
    """Times in seconds of the run's clock: as the client sees them, and when the engine got it.

    `turn` counts requests in the order of sending. `front_requests` and `front_tokens` are what the
    front end worked through from its sending on, itself included. One that `is_cut` had no end of
    its own; `first_token_s` is then NaN where no token had come. `replica` is the place of the
    engine that answered, and `engine` its name where there are several.
    """

    request: TwinRequest
    facts: RequestFacts | None
    unit: SendUnit
    turn: int
    user: int
    scheduled_s: float
    sent_s: float
    queued_s: float
    first_token_s: float
    end_s: float
    tokens: ServedTokens
    front_requests: int
    front_tokens: int
    is_cut: bool = False
    replica: int = 0
    engine: str = ""

    @property
    def ttft_s(self) -> float:
        """Time to first token, from when it was meant to go."""
        return self.first_token_s - self.scheduled_s

    @property
    def e2e_s(self) -> float:
        """To the last token."""
        return self.end_s - self.scheduled_s


@dataclass(frozen=True, slots=True)
class ServedLoad:
    """What came of a load, in the order of sending; `ledger` is that of all replicas together."""

    requests: tuple[ServedRequest, ...]
    ledger: EngineLedger
    replicas: tuple[EngineLedger, ...]


def cached_most(request: TwinRequest) -> int:
    """Tokens that a request has in the cache at its end; its last one is never read again."""
    return len(request.prompt) + request.output_tokens - 1


def require_room(request: TwinRequest, shape: EngineShape) -> None:
    """Raise UsageError where a request would wait for ever."""
    room = shape.usable_blocks * shape.block_size
    if cached_most(request) > room:
        raise UsageError(
            f"the longest request needs {cached_most(request):,} tokens of cache, and there are"
            f" {room:,}: raise --kv-tokens"
        )


class _Replica:
    """An engine with the front end before it, which works through one request after the other."""

    def __init__(
        self, shape: EngineShape, step: StepTime, front: FrontTime, is_whole: bool
    ) -> None:
        lean = not is_whole and LeanEngine.serves(shape)
        self.engine = (
            LeanEngine(shape, step) if lean else VirtualEngine(shape, step, is_whole=is_whole)
        )
        self.open_requests = 0
        self._shape = shape
        self._front = front
        self._coming: list[tuple[float, int, TwinRequest]] = []
        self._free_s = 0.0
        self._work: deque[tuple[float, int]] = deque()
        self._work_tokens = self._idle = 0

    def take(self, request: TwinRequest, sent_s: float, turn: int) -> "_FrontWork":
        """What is before it in the front end is waited for. Raises UsageError where there is no
        room for it."""
        require_room(request, self._shape)
        tokens = len(request.prompt)
        while self._work and self._work[0][0] <= sent_s:
            self._work_tokens -= self._work.popleft()[1]
        begins_s = max(self._free_s, sent_s)
        self._free_s = begins_s + self._front.request_s + self._front.prompt_token_s * tokens
        self._work.append((self._free_s, tokens))
        self._work_tokens += tokens
        self.open_requests += 1
        queued = replace(request, arrival_s=self._free_s)
        heapq.heappush(self._coming, (self._free_s, turn, queued))
        return _FrontWork(self._free_s, len(self._work), self._work_tokens)

    @property
    def next_s(self) -> float:
        """When its next step begins, infinite with nothing to do."""
        if self.engine.busy:
            return self.engine.now_s
        return max(self.engine.now_s, self._coming[0][0]) if self._coming else math.inf

    def step(self) -> Sequence[str]:
        """One step; returns whose replies are complete with it."""
        engine = self.engine
        engine.now_s = self.next_s
        while self._coming and self._coming[0][0] <= engine.now_s:
            engine.submit(heapq.heappop(self._coming)[2])
        self._idle = 0 if engine.step() else self._idle + 1
        if self._idle > STEPS_WITHOUT_TOKENS:
            raise AssertionError(f"no token in {self._idle} steps: {engine.stuck()}")
        self.open_requests -= len(engine.finished)
        return engine.finished


@dataclass(frozen=True, slots=True)
class _FrontWork:
    """When a request came to the engine, and what its front end had to do until then."""

    queued_s: float
    requests: int
    tokens: int


@dataclass(frozen=True, slots=True)
class _Sending:
    """A request on its way: a part of what went out, to which replica."""

    part: "_Parts"
    place: int
    replica: _Replica
    turn: int
    sent_s: float
    front: _FrontWork


@dataclass(slots=True)
class _Parts:
    """A unit under way, of which so many replies are not complete."""

    outgoing: Outgoing
    left: int = field(default=0)


OnServed = Callable[[ServedRequest], None]


class TwinServer:
    """One load on one engine, or on several of one shape behind a router; used once.

    A `router` takes the place of the fleet's own. One that is not `is_whole` forgets requests once
    they are served: its memory does not grow.
    """

    def __init__(
        self,
        load: OfferedLoad,
        shape: EngineShape,
        step: StepTime,
        front: FrontTime,
        *,
        fleet: Fleet = ONE_ENGINE,
        router: Router | None = None,
        is_whole: bool = True,
    ) -> None:
        self.unsent: Sequence[Outgoing] = ()
        self._cut_s = load.pace.cut_s
        self._late_s = front.output_s
        self._sender = UnitSender(load.units, load.pace)
        self._replicas = [_Replica(shape, step, front, is_whole) for _ in range(fleet.replicas)]
        self._router = router or fleet.new_router()
        self._under_way: dict[str, _Sending] = {}
        self._turns = 0

    @property
    def ledgers(self) -> list[EngineLedger]:
        """Of each replica."""
        return [each.engine.ledger for each in self._replicas]

    def serve(self) -> ServedLoad:
        """All of it, to the end."""
        served: list[ServedRequest] = []
        self.serve_each(served.append)
        served.sort(key=lambda each: each.turn)
        return ServedLoad(tuple(served), EngineLedger.merged(self.ledgers), tuple(self.ledgers))

    def serve_each(self, on_served: OnServed) -> None:
        """All of it; each request is told once its reply is complete, or cut off. What was due and
        never sent is then in `unsent`."""
        sender = self._sender
        while True:
            replica = min(self._replicas, key=lambda each: each.next_s)
            sends_s, steps_s = sender.next_s, replica.next_s
            if sends_s <= steps_s and sends_s < math.inf:
                if (outgoing := sender.take()) is not None:
                    self._send(outgoing)
            elif steps_s < self._cut_s:
                for name in replica.step():
                    self._follow(name, on_served)
            else:
                break
        for replica in self._replicas:
            replica.engine.abort(*self._under_way)  # what was told of them until then is in it
        for name in list(self._under_way):
            on_served(self._served(self._under_way.pop(name), self._cut_s, is_cut=True))
        sender.close()
        self.unsent = sender.unsent

    def _send(self, outgoing: Outgoing) -> None:
        """A unit of the stream goes out."""
        unit = outgoing.unit
        part = _Parts(outgoing, len(unit.requests))
        replica = self._chosen(unit.requests[0]) if unit.is_one_call else None
        for place, (request, offset_s) in enumerate(
            zip(unit.requests, unit.offsets_s, strict=True)
        ):
            replica = replica if unit.is_one_call and replica else self._chosen(request)
            sent_s = outgoing.sent_s + offset_s
            front = replica.take(request, sent_s, self._turns)
            sending = _Sending(part, place, replica, self._turns, sent_s, front)
            self._under_way[request.name] = sending
            self._turns += 1

    def _chosen(self, request: TwinRequest) -> _Replica:
        """By the router."""
        counts = [each.open_requests for each in self._replicas]
        return self._replicas[self._router.choose(request, counts)]

    def _follow(self, name: str, on_served: OnServed) -> None:
        """A reply is complete; with the last one of a unit others may go out."""
        sending = self._under_way.pop(name)
        end_s = sending.replica.engine.ledger.finished_s[name] + self._late_s
        on_served(self._served(sending, end_s))
        sending.part.left -= 1
        if not sending.part.left:
            behind = self._sender.ended(sending.part.outgoing, end_s)
            if behind is not None:
                self._send(behind)

    def _served(self, sending: _Sending, end_s: float, is_cut: bool = False) -> ServedRequest:
        outgoing = sending.part.outgoing
        request = outgoing.unit.requests[sending.place]
        tokens = sending.replica.engine.ledger.take(request.name)
        place = self._replicas.index(sending.replica)
        return ServedRequest(
            request=request,
            facts=outgoing.unit.facts[sending.place] if outgoing.unit.facts else None,
            unit=outgoing.unit,
            turn=sending.turn,
            user=outgoing.user,
            scheduled_s=outgoing.scheduled_s + outgoing.unit.offsets_s[sending.place],
            sent_s=sending.sent_s,
            queued_s=sending.front.queued_s,
            first_token_s=tokens.times_s[0] + self._late_s if tokens.times_s else math.nan,
            end_s=end_s,
            tokens=tokens,
            front_requests=sending.front.requests,
            front_tokens=sending.front.tokens,
            is_cut=is_cut,
            replica=place,
            engine=f"vllm-{place + 1}" if len(self._replicas) > 1 else "",
        )
