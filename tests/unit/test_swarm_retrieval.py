"""Requests behind retrieved contexts: what is sent and recorded, whatever the service answers."""

import asyncio
import time
from collections.abc import Mapping
from typing import Any

import pytest
import uvloop

from loadgen.client.exchange import Exchange
from loadgen.client.failures import HttpError, StreamFailure, TimedOut
from loadgen.client.retrieval import Retrieval
from loadgen.client.token_times import ReadLog
from loadgen.context import Request
from loadgen.record import RequestRecord
from loadgen.stats.clock import RunClock
from loadgen.swarm.sending.labels import Labels
from loadgen.swarm.sending.retriever import Labeller, Retriever
from loadgen.swarm.sending.session import Hooks, Session
from loadgen.workload.arrivals import ConstantPacer, Rate
from loadgen.workload.corpus import load_corpus
from loadgen.workload.lengths import EstimatedTokens
from loadgen.workload.settings import WorkloadSettings
from loadgen.workload.workload import Workload

RETRIEVAL_S = 0.05


class Engine:
    """Replies at once and keeps what it was sent."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, Mapping[str, Any] | None, float]] = []
        self.log = ReadLog()

    async def __aenter__(self) -> "Engine":
        return self

    async def __aexit__(self, *_: object) -> None:
        return None

    async def stream(
        self, prompt: str, max_tokens: int, exchange: Exchange, extra: Any, *more: Any
    ) -> None:
        self.sent.append((prompt, extra, more[0]))
        exchange.sent_at = time.perf_counter()
        exchange.token_times.append(time.perf_counter())
        exchange.end_at = time.perf_counter()
        exchange.outcome = "ok"


class Service:
    """Answers every question alike: a document, None to refuse, or a failure."""

    def __init__(self, answer: str | None | StreamFailure) -> None:
        self._answer = answer
        self.questions: list[str] = []

    async def __aenter__(self) -> "Service":
        return self

    async def __aexit__(self, *_: object) -> None:
        return None

    async def retrieve(self, question: str) -> Retrieval:
        self.questions.append(question)
        began_at = time.perf_counter()
        await asyncio.sleep(RETRIEVAL_S)
        if isinstance(self._answer, StreamFailure):
            raise self._answer
        took_ms = (time.perf_counter() - began_at) * 1000
        return Retrieval(self._answer, "Its own text.", 0.5, {}, took_ms)


class Swarm:
    """Sends `requests` one after the other and keeps the records; without a service, as drawn."""

    def __init__(
        self,
        answer: str | None | StreamFailure = None,
        wrong: float = 0.0,
        labels: bool = True,
        retrieves: bool = True,
        kind: type[Retriever] = Retriever,
    ) -> None:
        self.engine, self.service = Engine(), Service(answer)
        self.rows: list[RequestRecord] = []
        self.requests: list[Request] = []
        settings = WorkloadSettings(contexts=3)
        self.workload = Workload(load_corpus(), settings, EstimatedTokens())
        retriever = kind(self.service, self.workload, wrong)  # type: ignore[arg-type]
        self._retriever = retriever if retrieves else None
        self._labels = Labels(labels, {})

    def session(self, **more: Any) -> Session:
        return Session(
            workload=self.workload,
            client=self.engine,  # type: ignore[arg-type]
            clock=RunClock(time.time()),
            worker="0",
            hooks=Hooks(row=lambda record, gaps_ms: self.rows.append(record), sample=id),
            labels=self._labels,
            retriever=self._retriever,
            **more,
        )

    def run(self, requests: int, **more: Any) -> "Swarm":
        async def swarm() -> None:
            session = self.session(**more)
            async with session.running():
                for _ in range(requests):
                    turn = await session.next_turn()
                    self.requests.append(turn.request)
                    await session.send(turn, "user")

        uvloop.run(swarm())
        return self


def first_document() -> str:
    return load_corpus().documents[0].doc_id


def test_the_found_context_is_sent_and_is_the_label() -> None:
    swarm = Swarm(first_document()).run(12)
    text = swarm.workload.contexts.context(0).text
    assert swarm.service.questions == [request.question for request in swarm.requests]
    for request, row, (prompt, extra, _) in zip(
        swarm.requests, swarm.rows, swarm.engine.sent, strict=True
    ):
        assert prompt == f"{text}\n\nQuestion: {request.question}"
        assert extra == {"vllm_xargs": {"context": first_document()}}
        assert row.context_id == request.context_id
        assert row.label == row.rag_context_id == first_document()
        assert row.label_correct is (request.context_id == first_document())
    assert {row.label_correct for row in swarm.rows} == {True, False}


@pytest.mark.parametrize(("labels", "correct"), [(True, True), (False, None)])
def test_without_a_service_the_label_decides(labels: bool, correct: bool | None) -> None:
    swarm = Swarm(labels=labels, retrieves=False).run(3)
    assert swarm.service.questions == []
    for request, row, (prompt, _, _) in zip(
        swarm.requests, swarm.rows, swarm.engine.sent, strict=True
    ):
        assert prompt == request.prompt
        assert row.label == (row.context_id if labels else "")
        assert (row.rag_context_id, row.retrieval_ms, row.label_correct) == ("", None, correct)
        assert row.sent_s == row.scheduled_s


def test_where_no_label_is_sent_the_retrieval_is_judged_all_the_same() -> None:
    swarm = Swarm(first_document(), labels=False).run(6)
    assert {extra for _, extra, _ in swarm.engine.sent} == {None}
    for row in swarm.rows:
        assert (row.label, row.rag_context_id) == ("", first_document())
        assert row.label_correct is (row.context_id == first_document())


@pytest.mark.parametrize("answer", [first_document(), None])
def test_a_label_alone_leaves_the_question_behind_its_own_context(answer: str | None) -> None:
    swarm = Swarm(answer, kind=Labeller).run(9)
    wanted = None if answer is None else {"vllm_xargs": {"context": answer}}
    for request, row, (prompt, extra, _) in zip(
        swarm.requests, swarm.rows, swarm.engine.sent, strict=True
    ):
        assert (prompt, extra) == (request.prompt, wanted)
        assert row.rag_context_id == row.context_id == request.context_id
        assert row.label == (answer or "")
        assert row.label_correct is (answer == request.context_id)
    assert any(row.label_correct for row in swarm.rows) is (answer is not None)


@pytest.mark.parametrize("kind", [Retriever, Labeller])
def test_latency_counts_from_before_the_retrieval(kind: type[Retriever]) -> None:
    for more in ({}, {"pacer": ConstantPacer(Rate.parse("1000"))}):
        swarm = Swarm(first_document(), kind=kind).run(3, **more)
        for row, (_, _, spent_s) in zip(swarm.rows, swarm.engine.sent, strict=True):
            assert row.sent_s is not None
            assert row.sent_s - row.scheduled_s >= RETRIEVAL_S * 0.9
            assert row.ttft_ms is not None
            assert row.retrieval_ms is not None
            assert row.ttft_ms >= row.retrieval_ms >= RETRIEVAL_S * 900
            assert spent_s * 1000 >= row.retrieval_ms, "of --timeout this much is gone"


def test_a_refused_question_goes_alone_and_without_a_label() -> None:
    swarm = Swarm(None).run(2)
    assert [row.outcome for row in swarm.rows] == ["ok", "ok"]
    for request, row, (prompt, extra, _) in zip(
        swarm.requests, swarm.rows, swarm.engine.sent, strict=True
    ):
        assert prompt == f"Question: {request.question}"
        assert extra is None
        assert (row.rag_context_id, row.label, row.label_correct) == ("", "", False)
        assert row.retrieval_ms is not None


def test_a_document_that_the_corpus_has_not_is_sent_as_the_service_has_it() -> None:
    swarm = Swarm("stranger").run(1)
    assert swarm.engine.sent[0][0].startswith("Its own text.\n\nQuestion: ")
    assert (swarm.rows[0].label, swarm.rows[0].label_correct) == ("stranger", False)


@pytest.mark.parametrize("answer", [first_document(), None])
def test_wrong_contexts_stand_in_for_whatever_was_found(answer: str | None) -> None:
    swarm = Swarm(answer, wrong=1.0).run(9)
    for request, row, (prompt, _, _) in zip(
        swarm.requests, swarm.rows, swarm.engine.sent, strict=True
    ):
        index = swarm.workload.contexts.index_of(row.rag_context_id)
        assert index is not None
        assert index < 3, "one of those that the run is about"
        assert prompt.startswith(swarm.workload.contexts.context(index).text)
        assert row.label == row.rag_context_id != request.context_id
        assert (row.label_correct, len(swarm.service.questions)) == (False, 9)


@pytest.mark.parametrize(
    "failure", [HttpError("RAG service x: HTTP 503: away"), TimedOut("RAG service x: late")]
)
def test_what_cannot_be_labelled_is_a_failure_and_is_not_sent(failure: StreamFailure) -> None:
    swarm = Swarm(failure).run(2)
    assert swarm.engine.sent == []
    for row in swarm.rows:
        assert (row.outcome, row.error) == (failure.outcome, str(failure))
        assert (row.sent_s, row.status, row.ttft_ms, row.retrieval_ms) == (None,) * 4
        assert (row.rag_context_id, row.label, row.label_correct) == ("", "", None)
        assert row.e2e_ms is not None
        assert row.e2e_ms >= RETRIEVAL_S * 900


def test_a_request_cut_off_during_its_retrieval_is_recorded() -> None:
    swarm = Swarm(first_document())

    async def cut_off() -> None:
        session = swarm.session()
        async with session.running():
            sending = asyncio.create_task(session.send(await session.next_turn(), "user"))
            await asyncio.sleep(RETRIEVAL_S / 5)
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)

    uvloop.run(cut_off())
    (row,) = swarm.rows
    assert (row.outcome, row.sent_s) == ("cancelled", None)
    assert "retrieval" in row.error
    assert row.end_s > row.scheduled_s
