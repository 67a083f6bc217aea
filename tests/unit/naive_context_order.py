"""The stated rules of context order, written down once more without care for speed."""

from collections.abc import Iterable
from itertools import count

from fake_kv_engine import FakeKvEngine, FakeRequest

from scheduler_plugin.order import RECENT
from scheduler_plugin.settings import OrderSettings


class NaiveOrder:
    """Lists and scans only. It knows the true context of each request."""

    def __init__(self, settings: OrderSettings, engine: FakeKvEngine) -> None:
        self.settings = settings
        self.engine = engine
        self.first: list[FakeRequest] = []
        self.waiting: list[FakeRequest] = []
        self.skipped: dict[FakeRequest, bool] = {}
        self.places = count()
        self.arrival: dict[FakeRequest, tuple[int, float]] = {}
        self.overtaken: dict[FakeRequest, int] = {}
        self.recent: list[str] = []
        self.turn: str | None = None
        self.turn_admitted = 0

    def everyone(self) -> list[FakeRequest]:
        return self.first + self.waiting

    def context_of(self, request: FakeRequest) -> str:
        if self.settings.policy == "fcfs":
            return "all"
        is_known = request.label is not None or request.chain
        return request.context if is_known else str(self.arrival[request])

    def add(self, request: FakeRequest) -> None:
        self.arrival[request] = (next(self.places), self.engine.now_s())
        self.overtaken[request] = 0
        self.waiting.append(request)

    def add_first(self, request: FakeRequest) -> None:
        self.first.insert(0, request)

    def remove(self, requests: Iterable[FakeRequest]) -> None:
        gone = set(requests)
        self.first = [request for request in self.first if request not in gone]
        self.waiting = [request for request in self.waiting if request not in gone]
        self.skipped = {r: front for r, front in self.skipped.items() if r not in gone}

    def give_back(self) -> None:
        self.first = [request for request, front in self.skipped.items() if front] + self.first
        self.waiting += [request for request, front in self.skipped.items() if not front]
        self.waiting.sort(key=lambda request: self.arrival[request][0])
        self.skipped.clear()

    def next(self) -> tuple[FakeRequest, bool]:
        """The request that is next, and whether it would begin a turn."""
        if self.first:
            return self.first[0], False
        least = self.settings.min_kv_usage
        oldest = self.waiting[0]
        if least > 0 and self.engine.kv_usage() < least:
            return oldest, True
        if self.turn_admitted < self.settings.quantum:
            for request in self.waiting:
                if self.context_of(request) == self.turn:
                    return request, False
        if self.settings.policy != "lpm" or self.is_overdue(oldest):
            return oldest, True
        heads: dict[str, FakeRequest] = {}
        for request in self.waiting:
            heads.setdefault(self.context_of(request), request)
        looked_at = list(heads.values())[: self.settings.window]
        looked_at += [head for context, head in heads.items() if context in self.recent]
        return max(looked_at, key=lambda request: self.engine.resident_blocks(request, 0)), True

    def is_overdue(self, request: FakeRequest) -> bool:
        if self.overtaken[request] >= self.settings.max_overtakes:
            return True
        most_s = self.settings.max_wait_s
        return most_s is not None and self.engine.now_s() - self.arrival[request][1] >= most_s

    def skip(self, request: FakeRequest) -> None:
        self.skipped[request] = request in self.first
        (self.first if request in self.first else self.waiting).remove(request)

    def admit(self, request: FakeRequest, begins_turn: bool) -> None:
        if request in self.first:
            self.first.remove(request)
            return
        self.waiting.remove(request)
        context = self.context_of(request)
        if begins_turn:
            self.turn, self.turn_admitted = context, 0
            self.serve(request, context)
        self.turn_admitted += 1
        for other in [*self.waiting, *self.skipped]:
            if self.arrival[other][0] < self.arrival[request][0]:
                self.overtaken[other] += 1

    def serve(self, request: FakeRequest, context: str) -> None:
        if request.label is not None or request.chain:
            self.recent = [other for other in self.recent if other != context]
            self.recent = [*self.recent, context][-RECENT * self.settings.window :]
