"""What is asked of the virtual engine, what happened in a run of it, and what follows from it."""

from bisect import bisect_left, insort
from collections.abc import Mapping
from dataclasses import dataclass, field

from loadgen.twin.step_time import StepWork


@dataclass(frozen=True, slots=True)
class TwinRequest:
    """One request: `context` is its true context, sent as label only where `labelled`."""

    name: str
    context: str
    prompt: tuple[int, ...]
    arrival_s: float = 0.0
    output_tokens: int = 8
    labelled: bool = True
    priority: int = 0


@dataclass(frozen=True, slots=True)
class Admission:
    """A request leaves the queue for the running batch; `again` after a preemption."""

    name: str
    step: int
    at_s: float
    again: bool


@dataclass(frozen=True, slots=True)
class Step:
    """One call of schedule(): tokens per request in the order scheduled, who was preempted, what
    was computed and when."""

    scheduled: tuple[tuple[str, int], ...]
    preempted: frozenset[str]
    work: StepWork
    begins_s: float
    ends_s: float


@dataclass(slots=True)
class EngineLedger:
    """Counters of one run. `arrived` lists the requests in the order of arrival.

    Computed prompt tokens are those scheduled at prompt positions; `replayed_tokens` those
    scheduled again behind the prompt after a preemption; `reported_tokens` is what vLLM itself
    says it computed, of requests that gave a token and without recomputation.
    """

    arrived: list[TwinRequest] = field(default_factory=list)
    admissions: list[Admission] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    finished_s: dict[str, float] = field(default_factory=dict)
    first_token_s: dict[str, float] = field(default_factory=dict)
    output_tokens: dict[str, int] = field(default_factory=dict)
    computed_tokens: int = 0
    replayed_tokens: int = 0
    decode_tokens: int = 0
    reported_tokens: int = 0
    waiting_ahead: dict[str, int] = field(default_factory=dict)
    contexts_ahead: dict[str, int] = field(default_factory=dict)

    @property
    def order(self) -> list[str]:
        """Names in the order of first admission."""
        return [admission.name for admission in self.admissions if not admission.again]

    def latencies_s(self) -> dict[str, float]:
        """Arrival to last token of every finished request."""
        arrival = {ask.name: ask.arrival_s for ask in self.arrived}
        return {name: end - arrival[name] for name, end in self.finished_s.items()}

    def overtakes(self) -> dict[str, int]:
        """How many younger requests were admitted before each admitted one."""
        rank = {name: place for place, name in enumerate(self.order)}
        younger: list[int] = []
        counts = {}
        for ask in reversed(self.arrived):
            place = rank.get(ask.name)
            if place is not None:
                counts[ask.name] = bisect_left(younger, place)
                insort(younger, place)
        return counts

    def admissions_waited(self) -> Mapping[str, int]:
        """Admissions from each request's arrival to its own, itself included.

        That is its first-come position where the order is first come, first served.
        """
        overtakes = self.overtakes()
        return {name: self.waiting_ahead[name] + 1 + count for name, count in overtakes.items()}
