"""A load on the virtual engine, with what stands before and behind it."""

import heapq
from collections import deque
from dataclasses import dataclass, replace

from loadgen.twin.engine import STEPS_WITHOUT_TOKENS, EngineShape, VirtualEngine
from loadgen.twin.ledger import EngineLedger, TwinRequest
from loadgen.twin.load import RecordedLoad, SendUnit
from loadgen.twin.model import FrontTime
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
    """What came of a load, in the order of sending."""

    requests: tuple[ServedRequest, ...]
    ledger: EngineLedger

    @property
    def duration_s(self) -> float:
        """From the first send to the last end."""
        first_s = min(each.sent_s for each in self.requests)
        return max(each.end_s for each in self.requests) - first_s


class TwinServer:
    """One load on one engine; used once."""

    def __init__(
        self, load: RecordedLoad, shape: EngineShape, step: StepTime, front: FrontTime
    ) -> None:
        self._load = load
        self._front = front
        self._engine = VirtualEngine(shape, step)
        self._coming: list[tuple[float, int, TwinRequest]] = []
        self._units = deque(load.units)
        self._unit_of: dict[str, SendUnit] = {}
        self._left: dict[int, int] = {}
        self._sent: dict[str, tuple[float, float, int, int]] = {}
        self._front_free_s = 0.0
        self._front_work: deque[tuple[float, int]] = deque()
        self._seen = 0

    def serve(self) -> ServedLoad:
        """All of it, to the end."""
        if self._load.is_open:
            while self._units:
                self._send(self._units[0].sent_s)
        else:
            for start_s in self._load.starts_s:
                self._send(start_s)
        self._run()
        return ServedLoad(tuple(self._served()), self._engine.ledger)

    def _send(self, at_s: float) -> None:
        """The next unit of the stream goes out."""
        if not self._units:
            return
        unit = self._units.popleft()
        self._left[id(unit)] = len(unit.requests)
        for request, offset_s in zip(unit.requests, unit.offsets_s, strict=True):
            self._unit_of[request.name] = unit
            self._through_front(request, at_s + offset_s)

    def _through_front(self, request: TwinRequest, sent_s: float) -> None:
        """One request after the other: what is before it in the front end is waited for."""
        tokens = len(request.prompt)
        while self._front_work and self._front_work[0][0] <= sent_s:
            self._front_work.popleft()
        begins_s = max(self._front_free_s, sent_s)
        self._front_free_s = begins_s + self._front.request_s + self._front.prompt_token_s * tokens
        self._front_work.append((self._front_free_s, tokens))
        waited = len(self._front_work), sum(each for _, each in self._front_work)
        self._sent[request.name] = sent_s, self._front_free_s, *waited
        heapq.heappush(
            self._coming,
            (self._front_free_s, len(self._sent), replace(request, arrival_s=self._front_free_s)),
        )

    def _run(self) -> None:
        engine, idle = self._engine, 0
        while self._coming or engine.busy:
            if not engine.busy:
                engine.now_s = max(engine.now_s, self._coming[0][0])
            while self._coming and self._coming[0][0] <= engine.now_s:
                engine.submit(heapq.heappop(self._coming)[2])
            idle = 0 if engine.step() else idle + 1
            if idle > STEPS_WITHOUT_TOKENS:
                raise AssertionError(f"no token in {idle} steps: {engine.stuck()}")
            self._follow()

    def _follow(self) -> None:
        """Users whose replies are complete send what is next."""
        finished = self._engine.ledger.finished_s
        if len(finished) == self._seen:
            return
        new = list(finished)[self._seen :]
        self._seen = len(finished)
        if self._load.is_open:
            return
        for name in new:
            unit = self._unit_of[name]
            self._left[id(unit)] -= 1
            if not self._left[id(unit)]:
                self._send(finished[name] + self._front.output_s + self._load.gap_s)

    def _served(self) -> list[ServedRequest]:
        ledger, late_s = self._engine.ledger, self._front.output_s
        return [
            ServedRequest(
                request=request,
                sent_s=self._sent[request.name][0],
                queued_s=self._sent[request.name][1],
                first_token_s=ledger.first_token_s[request.name] + late_s,
                end_s=ledger.finished_s[request.name] + late_s,
                front_requests=self._sent[request.name][2],
                front_tokens=self._sent[request.name][3],
            )
            for request in self._load.requests
        ]
