"""The virtual engine with grammars that take their time and a connector that has faults."""

from bisect import bisect_left, insort

from ask import Ask, make_request
from vllm.v1.outputs import KVConnectorOutput
from vllm.v1.request import Request

from loadgen.twin.engine import EngineShape, OnStep
from loadgen.twin.engine import VirtualEngine as PlainEngine
from loadgen.twin.ledger import EngineLedger, TwinRequest
from loadgen.twin.step_time import StepTime


class ReadyGrammar:
    """A grammar that accepts every token."""

    def accept_tokens(self, request_id: str, tokens: list[int]) -> bool:
        return True

    def is_terminated(self) -> bool:
        return False


class VirtualEngine(PlainEngine):
    def __init__(
        self, shape: EngineShape, cost: StepTime | None = None, on_step: OnStep | None = None
    ) -> None:
        super().__init__(shape, cost, on_step)
        self._grammars: dict[str, tuple[float, Request]] = {}
        self._loaded: set[str] = set()

    def submit(self, request: TwinRequest) -> Request:
        made = super().submit(request)
        if isinstance(request, Ask) and request.grammar_s is not None:
            self._grammars[request.name] = (self.now_s + request.grammar_s, made)
        return made

    def request_of(self, request: TwinRequest) -> Request:
        if isinstance(request, Ask):
            return make_request(request, self.shape.block_size)
        return super().request_of(request)

    def abort(self, *names: str) -> None:
        for name in names:
            self._grammars.pop(name, None)
        super().abort(*names)

    def transfers(self) -> KVConnectorOutput | None:
        """Background loads end one step after they began."""
        connector = self.scheduler.connector
        if connector is None:
            return None
        done, self._loaded = self._loaded, set(connector.take_loads())
        failed = done if connector.loads_fail else set()
        return KVConnectorOutput(finished_recving=done, failed_recving=failed) if done else None

    def before_schedule(self) -> None:
        for name, (ready_s, request) in list(self._grammars.items()):
            if ready_s <= self.now_s:
                request.structured_output_request.grammar = ReadyGrammar()
                del self._grammars[name]


def overtakes(ledger: EngineLedger) -> dict[str, int]:
    """How many younger requests were admitted before each admitted one."""
    rank = {name: place for place, name in enumerate(ledger.order)}
    younger: list[int] = []
    counts = {}
    for ask in reversed(ledger.arrived):
        place = rank.get(ask.name)
        if place is not None:
            counts[ask.name] = bisect_left(younger, place)
            insort(younger, place)
    return counts
