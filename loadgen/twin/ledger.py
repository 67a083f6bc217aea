"""What is asked of the virtual engine, what happened in a run of it, and what follows from it."""

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields

from loadgen.twin.step_time import StepWork


@dataclass(frozen=True, slots=True)
class TwinRequest:
    """One request: `context` is that of its prompt, sent as label only where `labelled`; `label` is
    sent in its place where there is one."""

    name: str
    context: str
    prompt: tuple[int, ...]
    arrival_s: float = 0.0
    output_tokens: int = 8
    labelled: bool = True
    priority: int = 0
    label: str = ""

    @property
    def sent_label(self) -> str:
        """What the engine is told of its context, empty for nothing."""
        return (self.label or self.context) if self.labelled else ""


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


@dataclass(frozen=True, slots=True)
class ServedTokens:
    """Of one request: when its tokens came, on the engine's clock, and how many prompt tokens were
    cached, None before its first token."""

    times_s: "array[float]"
    cached: int | None


@dataclass(slots=True)
class EngineLedger:
    """Counters of one run. `arrived` lists the requests in the order of arrival.

    Computed prompt tokens are those scheduled at prompt positions; `replayed_tokens` those
    scheduled again behind the prompt after a preemption. `reported_tokens` is what vLLM itself says
    it computed, of requests that gave a token and without recomputation, beside what it took from
    its own cache and from a tier. `token_times_s` has the time of each token of a reply,
    `cached_tokens` what its first admission found.

    One that is not `is_whole` keeps counters, and of requests those whose replies have not been
    taken by `take`: its size does not grow with the length of a run.
    """

    is_whole: bool = True
    requests: int = 0
    contexts: set[str] = field(default_factory=set)
    arrived: list[TwinRequest] = field(default_factory=list)
    admissions: list[Admission] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    finished_s: dict[str, float] = field(default_factory=dict)
    token_times_s: "dict[str, array[float]]" = field(default_factory=dict)
    cached_tokens: dict[str, int] = field(default_factory=dict)
    output_tokens: dict[str, int] = field(default_factory=dict)
    computed_tokens: int = 0
    replayed_tokens: int = 0
    decode_tokens: int = 0
    reported_tokens: int = 0
    reported_cached_tokens: int = 0
    reported_external_tokens: int = 0
    generated_tokens: int = 0
    preemptions: int = 0
    peak_running: int = 0
    waiting_ahead: dict[str, int] = field(default_factory=dict)
    contexts_ahead: dict[str, int] = field(default_factory=dict)

    @classmethod
    def merged(cls, ledgers: Sequence["EngineLedger"]) -> "EngineLedger":
        """One of what several engines did; of one that one itself."""
        if len(ledgers) == 1:
            return ledgers[0]
        found = cls()
        for each in fields(cls):
            own = [getattr(ledger, each.name) for ledger in ledgers]
            if isinstance(own[0], bool):
                setattr(found, each.name, all(own))
            elif isinstance(own[0], dict):
                setattr(found, each.name, {k: v for part in own for k, v in part.items()})
            elif isinstance(own[0], set):
                setattr(found, each.name, set().union(*own))
            elif isinstance(own[0], list):
                setattr(found, each.name, [item for part in own for item in part])
            else:
                setattr(found, each.name, sum(own))
        return found

    def arrive(self, request: TwinRequest, unadmitted: Iterable[TwinRequest]) -> None:
        """It is queued behind these."""
        self.requests += 1
        self.contexts.add(request.context)
        if not self.is_whole:
            return
        ahead = list(unadmitted)
        self.arrived.append(request)
        self.waiting_ahead[request.name] = len(ahead)
        older = {other.context for other in ahead}
        self.contexts_ahead[request.name] = len(older - {request.context})

    def admit(self, admission: Admission) -> None:
        """It left the queue."""
        if self.is_whole:
            self.admissions.append(admission)

    def add_step(self, step: Step) -> None:
        """One call of schedule()."""
        self.preemptions += len(step.preempted)
        self.peak_running = max(self.peak_running, len(step.scheduled))
        if self.is_whole:
            self.steps.append(step)

    def add_tokens(self, name: str, times_s: Sequence[float]) -> None:
        """Tokens of a reply came at these times."""
        self.generated_tokens += len(times_s)
        self.output_tokens[name] = self.output_tokens.get(name, 0) + len(times_s)
        known = self.token_times_s.get(name)
        if known is None:
            self.token_times_s[name] = array("d", times_s)
        else:
            known.extend(times_s)

    def take(self, name: str) -> "ServedTokens":
        """What became of a request, which is forgotten where not all is kept."""
        none: array[float] = array("d")
        if self.is_whole:
            return ServedTokens(self.token_times_s.get(name, none), self.cached_tokens.get(name))
        self.finished_s.pop(name, None)
        self.output_tokens.pop(name, None)
        return ServedTokens(self.token_times_s.pop(name, none), self.cached_tokens.pop(name, None))

    @property
    def first_token_s(self) -> dict[str, float]:
        """Of every reply that has begun."""
        return {name: times_s[0] for name, times_s in self.token_times_s.items()}

    @property
    def order(self) -> list[str]:
        """Names in the order of first admission."""
        return [admission.name for admission in self.admissions if not admission.again]

    def latencies_s(self) -> dict[str, float]:
        """Arrival to last token of every finished request."""
        arrival = {ask.name: ask.arrival_s for ask in self.arrived}
        return {name: end - arrival[name] for name, end in self.finished_s.items()}
