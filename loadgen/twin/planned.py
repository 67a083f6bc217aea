"""A load that nobody has sent yet: the requests that a run with these options would send."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from loadgen.context import Request
from loadgen.twin.ledger import TwinRequest
from loadgen.twin.sending import Pace, RequestFacts, SendUnit
from loadgen.workload.arrivals import Pacer
from loadgen.workload.batches import Batching
from loadgen.workload.stream import Stream
from loadgen.workload.trace.workload import TraceWorkload
from loadgen.workload.workload import Workload

NOT_SENT, RETRIEVED = "none", "rag"
"""Two of `--labels`: the engine is told nothing, and the context is found by a service."""


@dataclass(frozen=True, slots=True)
class PlannedLoad:
    """The workload of a run, cut into what is sent together, as often as it is asked for.

    `ids` are the tokens of a prompt. `make_pacer` gives None for a closed loop. With `labels` rag
    the share `rag_wrong` of the requests gets another context than its own, all others the right
    one, and finding them takes no time. Batches that go `as_list` are one call.
    """

    workload: Workload | TraceWorkload
    ids: Callable[[str], Sequence[int]]
    make_pacer: Callable[[], Pacer | None]
    pace: Pace
    batching: Batching | None = None
    as_list: bool = False
    labels: str = "oracle"
    rag_wrong: float = 0.0

    @property
    def units(self) -> Iterator[SendUnit]:
        """In the order of the stream, made as they are needed."""
        pacer = self.make_pacer()
        for number, (batch, requests) in enumerate(self._together()):
            made = [self._made(each, batch, self._sent_label(each, requests)) for each in requests]
            yield SendUnit(
                number=number,
                requests=tuple(request for request, _ in made),
                offsets_s=(0.0,) * len(made),
                due_s=pacer.next_s() if pacer is not None else 0.0,
                session="" if batch else requests[0].session_id,
                facts=tuple(facts for _, facts in made),
                is_one_call=bool(batch) and self.as_list,
            )

    def _together(self) -> Iterator[tuple[str, tuple[Request, ...]]]:
        """The number of a batch and its requests; of a single one there is no number."""
        workload = self.workload
        if isinstance(workload, TraceWorkload):
            for request in workload.requests():
                yield "", (request,)
        elif self.batching is not None:
            for batch in workload.batches(self.batching):
                yield str(batch.index), batch.requests
        else:
            for draw in Stream(workload.settings):
                yield "", (workload.request_for(draw),)

    def _sent_label(self, request: Request, together: Sequence[Request]) -> str:
        """A call about several contexts has no label; that of another has its first one's."""
        if self.labels == NOT_SENT:
            return ""
        if not self.as_list:
            return request.label
        several = len({each.context_id for each in together}) > 1
        return "" if several else together[0].label

    def _made(self, request: Request, batch: str, label: str) -> tuple[TwinRequest, RequestFacts]:
        context, prompt = request.context_id, request.prompt
        is_retrieved = self.labels == RETRIEVED and isinstance(self.workload, Workload)
        if is_retrieved:
            context = label = self._found(request)
            prompt = self._behind(context, request)
        made = TwinRequest(
            name=str(request.index),
            context=context,
            prompt=tuple(self.ids(prompt)),
            output_tokens=request.max_tokens,
            labelled=bool(label),
            label=label,
        )
        facts = RequestFacts(
            context_id=request.context_id,
            question_id=request.question_id,
            batch_id=batch,
            repeat=request.root != request.index,
            rag_context_id=context if is_retrieved else "",
            label_correct=label == request.context_id if label else None,
            is_retrieved=is_retrieved,
            label=label,
        )
        return made, facts

    def _found(self, request: Request) -> str:
        assert isinstance(self.workload, Workload)
        return self.workload.mistake(request, self.rag_wrong) or request.context_id

    def _behind(self, context: str, request: Request) -> str:
        assert isinstance(self.workload, Workload)
        return self.workload.prompt_behind(context, "", request.question)
