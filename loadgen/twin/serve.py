"""A load on virtual engines, with what stands before and behind them."""

import heapq
import math
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from loadgen.twin.engine import STEPS_WITHOUT_TOKENS, EngineShape, VirtualEngine
from loadgen.twin.ledger import EngineLedger, TwinRequest
from loadgen.twin.load import RecordedLoad, SendUnit
from loadgen.twin.model import FrontTime
from loadgen.twin.routing import RoundRobin, Router
from loadgen.twin.step_time import StepTime


@dataclass(frozen=True, slots=True)
class ServedRequest:
    """Times in seconds of the run's clock: as the client sees them, and when the engine got it.
    `front_requests` and `front_tokens` are what the front end worked through from its sending on,
    itself included."""

    request: TwinRequest
    sent_s: float
    queued_s: float
    first_token_s: float
    end_s: float
    front_requests: int
    front_tokens: int

    @property
    def ttft_s(self) -> float:
        """Time to first token."""
        return self.first_token_s - self.sent_s

    @property
    def e2e_s(self) -> float:
        """To the last token."""
        return self.end_s - self.sent_s


@dataclass(frozen=True, slots=True)
class ServedLoad:
    """What came of a load, in the order of sending; `ledger` is that of all replicas together."""

    requests: tuple[ServedRequest, ...]
    ledger: EngineLedger
    replicas: tuple[EngineLedger, ...]

    @property
    def duration_s(self) -> float:
        """From the first send to the last end."""
        first_s = min(each.sent_s for each in self.requests)
        return max(each.end_s for each in self.requests) - first_s


class _Replica:
    """An engine with the front end before it, which works through one request after the other."""

    def __init__(self, shape: EngineShape, step: StepTime, front: FrontTime) -> None:
        self.engine = VirtualEngine(shape, step)
        self.open_requests = 0
        self._front = front
        self._coming: list[tuple[float, int, TwinRequest]] = []
        self._free_s = 0.0
        self._work: deque[tuple[float, int]] = deque()
        self._seen = self._idle = 0

    def take(self, request: TwinRequest, sent_s: float, turn: int) -> "_Sending":
        """What is before it in the front end is waited for."""
        tokens = len(request.prompt)
        while self._work and self._work[0][0] <= sent_s:
            self._work.popleft()
        begins_s = max(self._free_s, sent_s)
        self._free_s = begins_s + self._front.request_s + self._front.prompt_token_s * tokens
        self._work.append((self._free_s, tokens))
        self.open_requests += 1
        queued = replace(request, arrival_s=self._free_s)
        heapq.heappush(self._coming, (self._free_s, turn, queued))
        return _Sending(
            self, sent_s, self._free_s, len(self._work), sum(each for _, each in self._work)
        )

    @property
    def next_s(self) -> float:
        """When its next step begins, infinite with nothing to do."""
        if self.engine.busy:
            return self.engine.now_s
        return max(self.engine.now_s, self._coming[0][0]) if self._coming else math.inf

    def step(self) -> list[str]:
        """One step; returns whose replies are complete with it."""
        engine = self.engine
        engine.now_s = self.next_s
        while self._coming and self._coming[0][0] <= engine.now_s:
            engine.submit(heapq.heappop(self._coming)[2])
        self._idle = 0 if engine.step() else self._idle + 1
        if self._idle > STEPS_WITHOUT_TOKENS:
            raise AssertionError(f"no token in {self._idle} steps: {engine.stuck()}")
        finished = engine.ledger.finished_s
        if len(finished) == self._seen:
            return []
        new = list(finished)[self._seen :]
        self._seen = len(finished)
        self.open_requests -= len(new)
        return new


@dataclass(frozen=True, slots=True)
class _Sending:
    """A request on its way: where to, when, and what its front end then had to do."""

    replica: _Replica
    sent_s: float
    queued_s: float
    front_requests: int
    front_tokens: int


class TwinServer:
    """One load on one engine, or on several of one shape behind a router; used once."""

    def __init__(
        self,
        load: RecordedLoad,
        shape: EngineShape,
        step: StepTime,
        front: FrontTime,
        *,
        replicas: int = 1,
        router: Router | None = None,
    ) -> None:
        self._load = load
        self._late_s = front.output_s
        self._replicas = [_Replica(shape, step, front) for _ in range(replicas)]
        self._router = router or RoundRobin()
        self._units = deque(load.units)
        self._unit_of: dict[str, SendUnit] = {}
        self._left: dict[int, int] = {}
        self._sent: dict[str, _Sending] = {}

    def serve(self) -> ServedLoad:
        """All of it, to the end."""
        if not self._load.is_open:
            for start_s in self._load.starts_s:
                self._send(start_s)
        while True:
            replica = min(self._replicas, key=lambda each: each.next_s)
            if self._load.is_open and self._units and self._units[0].sent_s <= replica.next_s:
                self._send(self._units[0].sent_s)
            elif replica.next_s < math.inf:
                self._follow(replica, replica.step())
            else:
                break
        ledgers = [each.engine.ledger for each in self._replicas]
        return ServedLoad(tuple(self._served()), EngineLedger.merged(ledgers), tuple(ledgers))

    def _send(self, at_s: float) -> None:
        """The next unit of the stream goes out."""
        if not self._units:
            return
        unit = self._units.popleft()
        self._left[id(unit)] = len(unit.requests)
        for request, offset_s in zip(unit.requests, unit.offsets_s, strict=True):
            self._unit_of[request.name] = unit
            counts = [each.open_requests for each in self._replicas]
            replica = self._replicas[self._router.choose(request, counts)]
            self._sent[request.name] = replica.take(request, at_s + offset_s, len(self._sent))

    def _follow(self, replica: _Replica, finished: Sequence[str]) -> None:
        """Users whose replies are complete send what is next."""
        if self._load.is_open:
            return
        for name in finished:
            unit = self._unit_of[name]
            self._left[id(unit)] -= 1
            if not self._left[id(unit)]:
                end_s = replica.engine.ledger.finished_s[name] + self._late_s
                self._send(end_s + self._load.gap_s)

    def _served(self) -> Iterator[ServedRequest]:
        for request in self._load.requests:
            sending = self._sent[request.name]
            ledger = sending.replica.engine.ledger
            yield ServedRequest(
                request=request,
                sent_s=sending.sent_s,
                queued_s=sending.queued_s,
                first_token_s=ledger.token_times_s[request.name][0] + self._late_s,
                end_s=ledger.finished_s[request.name] + self._late_s,
                front_requests=sending.front_requests,
                front_tokens=sending.front_tokens,
            )
