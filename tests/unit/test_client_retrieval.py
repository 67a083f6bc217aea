"""The client of the RAG service, and what is asked of it beforehand, on a real server."""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from behaviours import unused_port

from loadgen.client.failures import StreamFailure
from loadgen.client.label_probe import RagFacts, probe_rag
from loadgen.client.retrieval import MAX_ATTEMPTS, Retrieval, RetrievalClient
from loadgen.context import Document
from loadgen.errors import HostError

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

LABEL = {"score": 0.8, "threshold": 0.3, "timings": {"embed_ms": 2, "total_ms": 3.5}}
FOUND = {
    "object": "retrieval",
    "doc_id": "raft",
    "document": {"doc_id": "raft", "title": "Raft", "text": "A leader.\n\nIts log."},
    "label": LABEL,
}
REFUSED = {"object": "retrieval", "doc_id": None, "document": None, "label": LABEL}


class Answers:
    """Gives the n-th question the n-th answer, the last one ever after."""

    def __init__(self, *answers: tuple[int, object, dict[str, str]] | Handler) -> None:
        self._answers = list(answers)
        self.questions: list[str] = []

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.questions.append((await request.json())["query"])
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if callable(answer):
            return await answer(request)
        status, body, headers = answer
        if isinstance(body, str):
            return web.Response(status=status, text=body, headers=headers)
        return web.json_response(body, status=status, headers=headers)


def busy(wait: str) -> tuple[int, object, dict[str, str]]:
    return 429, {"error": {"message": "the queue is full"}}, {"Retry-After": wait}


def says(body: object, status: int = 200) -> tuple[int, object, dict[str, str]]:
    return status, body, {}


@asynccontextmanager
async def serving(routes: dict[tuple[str, str], Handler]) -> AsyncIterator[str]:
    app = web.Application()
    for (method, path), handler in routes.items():
        app.router.add_route(method, path, handler)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def ask(answers: Answers, timeout_s: float = 20.0, question: str = "Who?") -> Retrieval:
    async with (
        serving({("POST", "/v1/retrieve"): answers.answer}) as url,
        RetrievalClient(f"{url}/", timeout_s) as client,
    ):
        return await client.retrieve(question)


async def test_what_is_found_and_what_is_refused() -> None:
    answers = Answers(says(FOUND))
    found = await ask(answers)
    assert (found.doc_id, found.text, found.score) == ("raft", "A leader.\n\nIts log.", 0.8)
    assert found.timings_ms == {"embed_ms": 2.0, "total_ms": 3.5}
    assert found.retrieval_ms > 0
    assert answers.questions == ["Who?"]
    refused = await ask(Answers(says(REFUSED)))
    assert (refused.doc_id, refused.text, refused.score) == (None, "", 0.8)


@pytest.mark.parametrize("doc_id", ["raft\u00a02", "ra\u200dft"])
async def test_an_id_may_hold_any_sign_of_a_text(doc_id: str) -> None:
    assert (await ask(Answers(says({**FOUND, "doc_id": doc_id})))).doc_id == doc_id


async def test_a_full_queue_is_waited_for_and_the_wait_counts() -> None:
    answers = Answers(busy("1"), says(FOUND))
    found = await ask(answers)
    assert (found.doc_id, len(answers.questions)) == ("raft", 2)
    assert found.retrieval_ms >= 1000


async def test_a_queue_that_stays_full_is_given_up() -> None:
    answers = Answers(busy("0"))
    with pytest.raises(StreamFailure, match="HTTP 429: the queue is full") as failure:
        await ask(answers)
    assert failure.value.outcome == "http_error"
    assert len(answers.questions) == MAX_ATTEMPTS


@pytest.mark.parametrize("wait", ["3600", "Wed, 21 Oct 2015 07:28:00 GMT", "-1", ""])
async def test_a_wait_is_bounded_by_the_time_of_the_request(wait: str) -> None:
    with pytest.raises(StreamFailure, match=r"no answer within 0\.2 s") as failure:
        await ask(Answers(busy(wait)), timeout_s=0.2)
    assert failure.value.outcome == "timeout"


async def hang(request: web.Request) -> web.StreamResponse:
    await asyncio.sleep(60)
    return web.Response()


async def hang_up(request: web.Request) -> web.StreamResponse:
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


async def break_off(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Length": "1000"})
    await response.prepare(request)
    await response.write(b'{"doc_id":')
    return await hang_up(request)


NO_SCORE = {**FOUND, "label": {"timings": {}}}
FAILURES: dict[str, tuple[Any, str, str]] = {
    "unavailable": (says({"error": {"message": "Chroma is away"}}, 503), "http_error", "503: Chr"),
    "redirect": (says({}, 307), "http_error", "HTTP 307"),
    "no json": (says("<html>"), "malformed", "no answer to /v1/retrieve: <html>"),
    "no label": (says({"doc_id": None}), "malformed", "no answer to"),
    "no score": (says(NO_SCORE), "malformed", "no answer to"),
    "no text": (says({**FOUND, "document": {"text": 7}}), "malformed", "no answer to"),
    "a list": (says([FOUND]), "malformed", "no answer to"),
    "hangs up": (hang_up, "connect_error", "closed the connection"),
    "breaks off": (break_off, "truncated", "broke in the middle"),
    "hangs": (hang, "timeout", "no answer within 0.3 s"),
}


@pytest.mark.parametrize("name", FAILURES)
async def test_every_failure_names_the_service_and_has_an_outcome(name: str) -> None:
    answer, outcome, said = FAILURES[name]
    with pytest.raises(StreamFailure) as failure:
        await ask(Answers(answer), timeout_s=0.3 if answer is hang else 20.0)
    assert failure.value.outcome == outcome
    assert str(failure.value).startswith("RAG service http://127.0.0.1:")
    assert said in str(failure.value)
    assert "\n" not in str(failure.value)


async def test_nobody_listens() -> None:
    async with RetrievalClient(f"http://127.0.0.1:{unused_port()}") as client:
        with pytest.raises(StreamFailure, match="refused the connection") as failure:
            await client.retrieve("Who?")
    assert failure.value.outcome == "connect_error"


async def test_a_question_that_is_no_unicode_is_not_sent() -> None:
    with pytest.raises(StreamFailure, match="surrogate") as failure:
        await ask(Answers(says(FOUND)), question="Who \ud800?")
    assert "RAG service" not in str(failure.value)


def text_digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]


class Shelf:
    """The listing of a library, in pages; each text is its id, but for the `spoilt`."""

    def __init__(self, doc_ids: list[str], size: int, spoilt: str = "") -> None:
        self._doc_ids = sorted(doc_ids)
        self._size = size
        self._spoilt = spoilt
        self.asked: list[str] = []

    async def page(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(request.query["limit"])
        rest = [doc_id for doc_id in self._doc_ids if doc_id > request.query["after"]]
        data = [
            {"doc_id": doc_id, "text_digest": text_digest(doc_id * (1 + (doc_id in self._spoilt)))}
            for doc_id in rest[: self._size]
        ]
        return web.json_response({"data": data, "has_more": len(rest) > self._size})


async def probed(
    doc_ids: list[str], held: list[str], ready: Any = None, spoilt: str = ""
) -> RagFacts:
    size = {"documents": len(held), "chunks": 7, "embedder": "hashing", "threshold": 0.0}
    documents = [Document(doc_id, "", doc_id) for doc_id in doc_ids]
    state = ready or says({"status": "ready", **size})

    async def answer(request: web.Request) -> web.StreamResponse:
        return web.json_response(state[1], status=state[0])

    shelf = Shelf(held, 2, spoilt)
    async with serving({("GET", "/ready"): answer, ("GET", "/v1/documents"): shelf.page}) as url:
        return await probe_rag(url, documents, "my/corpus")


async def test_a_service_with_more_than_the_corpus_is_ready() -> None:
    facts = await probed(["a+b/ü", "c"], ["a+b/ü", "c", "d", "e&f", "g"])
    assert (facts.documents, facts.chunks, facts.strangers) == (5, 7, 3)
    assert (facts.embedder, facts.threshold) == ("hashing", 0.0)


async def test_other_texts_under_the_same_ids_are_named() -> None:
    with pytest.raises(HostError, match=r"has another text for 2 of the corpus's 3 .*\(a, c\)"):
        await probed(["a", "b", "c"], ["a", "b", "c", "d"], spoilt="acd")


async def test_without_texts_to_compare_one_document_is_listed() -> None:
    shelf = Shelf(list("abcde"), 2)

    async def ready(request: web.Request) -> web.StreamResponse:
        return web.json_response({"status": "ready", "corpus_digest": "of others"})

    async with serving({("GET", "/ready"): ready, ("GET", "/v1/documents"): shelf.page}) as url:
        assert (await probe_rag(url, (), "")).corpus_digest == "of others"
    assert shelf.asked == ["1"]


async def test_equal_texts_are_seen_without_a_listing() -> None:
    lines = "".join(f"{doc_id} {text_digest(doc_id)}\n" for doc_id in "abc")
    same = says({"status": "ready", "corpus_digest": text_digest(lines), "questions": 9})
    facts = await probed(["c", "b", "a"], [], same)
    assert (facts.strangers, facts.questions) == (0, 9)


@pytest.mark.parametrize(
    ("held", "ready", "said"),
    [
        (["a"], None, r"lacks 4 of the corpus's 5 documents \(b, c, d, …\)"),
        (["a"], None, "kvswarm rag index my/corpus"),
        ([], says({"error": {"message": "the library is being opened"}}, 503), "being opened"),
        ([], says({}, 404), "kvswarm rag serve"),
        ([], says({"object": "list"}), "kvswarm rag serve"),
    ],
)
async def test_a_service_that_cannot_be_used(held: list[str], ready: Any, said: str) -> None:
    with pytest.raises(HostError, match=said):
        await probed(list("abcde"), held, ready)


@pytest.mark.parametrize(
    "listing",
    [
        {"data": [{}]},
        {"data": ["x"]},
        {"data": [{"doc_id": 7}]},
        {"data": {"a": 1}},
        {"data": [], "has_more": True},
        {"data": [{"doc_id": "a"}], "has_more": True},
        ["a"],
    ],
)
async def test_a_stranger_that_says_it_is_ready_is_told_from_a_rag_service(listing: Any) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        ready = request.path == "/ready"
        return web.json_response({"status": "ready"} if ready else listing)

    routes: dict[tuple[str, str], Handler] = {("GET", "/ready"): answer}
    async with serving({**routes, ("GET", "/v1/documents"): answer}) as url:
        with pytest.raises(HostError, match=f"^{url} is no RAG service: .*kvswarm rag serve"):
            await probe_rag(url, [Document("a", "", "a")], "my/corpus")


async def test_a_service_that_lists_nothing_is_told_without_texts_too() -> None:
    async def ready(request: web.Request) -> web.StreamResponse:
        return web.json_response({"status": "ready", "features": "of a KV service"})

    async with serving({("GET", "/ready"): ready}) as url:
        with pytest.raises(HostError, match="does not list its documents: HTTP 404"):
            await probe_rag(url, (), "")
