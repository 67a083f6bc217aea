"""A model that reads what was found and puts it in order, over `/v1/rerank`."""

import asyncio
import json
import socket
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from aiohttp import web
from model_host import ModelHost, model_host
from service_process import service

from rag_store.cli.main import main
from rag_store.documents import Chunker
from rag_store.embedders import EmbedderSpec
from rag_store.errors import RerankerError, RerankerRefusal
from rag_store.library import open_library
from rag_store.ranking import RowScores, score_rows
from rag_store.reranker import AT_ONCE, RerankerSpec, open_reranker
from rag_store.search import excerpt
from rag_store.settings import Settings
from rag_store.store import Entry, Row

QUESTION = "which text is about a leader of a log"
TEXTS = {
    "raft": "A leader replicates its log to the followers.",
    "choir": "A leader sings the first line, and a choir answers.",
    "dough": "Bread rises when yeast ferments the dough.",
}
Score = Callable[[str], Any]


def scored(score: Score) -> Callable[[dict[str, Any]], tuple[int, Any]]:
    """An answer with a score for each text, the best first as servers give it."""

    def answer(body: dict[str, Any]) -> tuple[int, Any]:
        rows = [
            {"index": at, "relevance_score": score(text)}
            for at, text in enumerate(body["documents"])
        ]
        return 200, {"results": sorted(rows, key=lambda row: -row["relevance_score"])}

    return answer


def rerank_host(score: Score) -> Any:
    return model_host("/v1/rerank", scored(score))


def prefers(word: str) -> Score:
    return lambda text: 0.75 if word in text else 0.25


@pytest.fixture
def library(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    corpus = tmp_path / "corpus.jsonl"
    asked = {"raft": ["Who leads?"]}
    rows = [
        {"doc_id": name, "text": text, "questions": asked.get(name, [])}
        for name, text in TEXTS.items()
    ]
    corpus.write_text("".join(json.dumps(row) + "\n" for row in rows))
    path = tmp_path / "library"
    assert main(["index", str(corpus), "--path", str(path), "--embedder", "hashing"]) == 0
    capsys.readouterr()
    return path


def rag(library: Path, url: str, *arguments: object) -> int:
    fixed = ["--path", library, "--embedder", "hashing", "--reranker-url", url]
    return main([*map(str, [*arguments, *fixed])])


def label(
    library: Path, host: ModelHost, capsys: pytest.CaptureFixture[str], *more: object
) -> dict[str, Any]:
    assert rag(library, host.url, "label", QUESTION, "--json", "--reranker-model", "m", *more) == 0
    return dict(json.loads(capsys.readouterr().out))


def test_the_first_candidate_is_the_one_the_reranker_prefers(
    library: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with rerank_host(prefers("choir")) as host:
        found = label(library, host, capsys)
    best, second, *_ = found["candidates"]
    assert (found["doc_id"], best["doc_id"], second["doc_id"]) == ("choir", "choir", "raft")
    assert (best["relevance"], second["relevance"], found["margin"]) == (0.75, 0.25, 0.5)
    assert best["score"] < second["score"]
    assert found["timings"]["rerank_ms"] > 0
    stages = ("queue", "embed", "search", "fuse", "rerank")
    total = sum(found["timings"][f"{stage}_ms"] for stage in stages)
    assert found["timings"]["total_ms"] == pytest.approx(total)


def test_it_is_told_the_question_and_the_texts_and_no_question_of_theirs(
    library: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_KEY", "secret")
    monkeypatch.setenv("OPENAI_API_KEY", "for another host")
    with rerank_host(prefers("raft")) as host:
        label(library, host, capsys, "--reranker-key-env", "SOME_KEY")
        label(library, host, capsys)
    body, _ = host.bodies
    assert (body["model"], body["query"]) == ("m", QUESTION)
    assert body["documents"][0] == f"raft\n{TEXTS['raft']}"
    assert not any("Who leads?" in text for text in body["documents"])
    assert host.keys == ["Bearer secret", None]


def test_of_each_document_its_own_nearest_chunk_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    about, other = "which text is about a leader of a log", "bread rises when yeast ferments it"
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus" / "first.txt").write_text(f"{about}. {other}.")
    (tmp_path / "corpus" / "second.txt").write_text(f"{other}. {about}.")
    cut = ("--embedder", "hashing", "--chunk-tokens", "12", "--overlap-tokens", "0")
    path = tmp_path / "library"
    assert main(["index", str(tmp_path / "corpus"), "--path", str(path), *cut]) == 0
    capsys.readouterr()
    with rerank_host(prefers("log")) as host:
        label(path, host, capsys, "--rerank-chunks", 1, *cut)
    (body,) = host.bodies
    assert len(body["documents"]) == 2
    assert all("leader" in text and "yeast" not in text for text in body["documents"])


def test_what_is_not_read_stays_behind_in_its_order(
    library: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with model_host("/v1/rerank", scored(lambda text: 0.5)) as host:
        plain = label(library, host, capsys, "--rerank", 3)
        two = label(library, host, capsys, "--rerank", 2)
    assert [len(body["documents"]) for body in host.bodies] == [3, 2]
    order = [each["doc_id"] for each in plain["candidates"]]
    assert [each["doc_id"] for each in two["candidates"]] == order
    assert [each["relevance"] for each in two["candidates"]] == [0.5, 0.5, None]


def test_two_that_are_not_read_stay_in_their_order(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus, path = tmp_path / "corpus", tmp_path / "library"
    corpus.mkdir()
    words = QUESTION.split()
    for at, name in enumerate("dbace"):
        (corpus / f"{name}.txt").write_text(" ".join(words[: 3 + at]) + ".")
    assert main(["index", str(corpus), "--path", str(path), "--embedder", "hashing"]) == 0
    capsys.readouterr()
    with model_host("/v1/rerank", scored(lambda text: len(text))) as host:
        all_read = label(path, host, capsys)
        two_read = label(path, host, capsys, "--rerank", 2)
    by_score = sorted(all_read["candidates"], key=lambda each: -each["score"])
    order = [each["doc_id"] for each in by_score]
    assert len(order) == 5
    assert [each["doc_id"] for each in two_read["candidates"]][2:] == order[2:]


def test_an_empty_library_asks_nobody(tmp_path: Path) -> None:
    with rerank_host(prefers("")) as host:
        named = ("--reranker-url", host.url, "--reranker-model", "m")
        with service(tmp_path / "empty", *named) as running:
            found = running.post("/v1/label", {"query": QUESTION}).body
    assert found["candidates"] == []
    assert host.bodies == []


def test_explain_says_the_relevance(library: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with rerank_host(prefers("choir")) as host:
        assert rag(library, host.url, "explain", QUESTION, "--reranker-model", "m") == 0
    told = capsys.readouterr().out
    assert "choir: relevance 0.750, fused" in told
    assert "raft: relevance 0.250, fused" in told


def test_an_evaluation_says_what_it_gains(
    library: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    questions = tmp_path / "questions.jsonl"
    row = {"qid": "1", "question": QUESTION, "doc_id": "choir"}
    questions.write_text(json.dumps(row) + "\n")
    asked = ("eval", "--questions", questions, "--reranker-model", "m")
    with rerank_host(prefers("choir")) as host:
        assert rag(library, host.url, *asked, "--json") == 0
        found = json.loads(capsys.readouterr().out)
        assert rag(library, host.url, *asked) == 0
    assert found["top1"] == 1
    assert found["baselines"]["without_reranking"]["top1"] == 0
    others = ("whole_document", "dense", "bm25")
    assert [found["baselines"][name]["top1"] for name in others] == [0, 0, 0]
    assert found["stages_ms"]["rerank_ms"]["p50"] > 0
    assert "\nrerank " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        ((404, {"error": {"message": "no model m"}}), "answered HTTP 404: no model m"),
        ((200, {"results": [{"index": 0, "relevance_score": 1}]}), "did not score 3 texts"),
        ((200, "not JSON"), "did not score 3 texts: not JSON"),
        ((200, "[" * 100_000), "did not score 3 texts"),
        ((200, '{"results": [{"index": 1e999, "relevance_score": 1}]}'), "did not score 3 texts"),
        (
            (200, {"results": [{"index": at / 2, "relevance_score": 1} for at in range(3)]}),
            "did not score 3 texts",
        ),
        (
            (200, {"results": [{"index": at, "relevance_score": 1} for at in (0, 1, 2, 2)]}),
            "did not score 3 texts",
        ),
        ((500, "[" * 100_000), "answered HTTP 500"),
        (
            (200, {"results": [{"index": at, "relevance_score": "nan"} for at in range(3)]}),
            "gave scores that are not finite",
        ),
    ],
)
def test_a_reply_that_is_none_is_told_in_one_line(
    library: Path, capsys: pytest.CaptureFixture[str], answer: tuple[int, Any], told: str
) -> None:
    with model_host("/v1/rerank", lambda body: answer) as host:
        assert rag(library, host.url, "label", QUESTION, "--reranker-model", "m") == 1
    said = capsys.readouterr().err
    assert told in said
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--reranker-url", "localhost:1", "--reranker-model", "m"), "give http://host:port"),
        (("--reranker-url", "http://", "--reranker-model", "m"), "url is 'http://': give http://h"),
        (("--reranker-url", "http://h:99999", "--reranker-model", "m"), "give http://host:port"),
        (("--reranker-url", "http://localhost:1"), "--reranker-model"),
        (("--reranker-url", "http://me:secret@h", "--reranker-model", "m"), "holds a password"),
        (
            ("--reranker-url", "http://h", "--reranker-model", "m", "--rerank", "1"),
            "give at least 2",
        ),
        (
            ("--reranker-url", "http://h", "--reranker-model", "m", "--rerank", "13"),
            "--rerank is 13: with --retriever hybrid a question has at most 12 candidates",
        ),
        (
            (
                *("--reranker-url", "http://h", "--reranker-model", "m"),
                *("--rerank", "7", "--retriever", "dense"),
            ),
            "at most 6 candidates",
        ),
        (
            ("--reranker-url", "http://h", "--reranker-model", "m", "--rerank-chunks", "0"),
            "give at least 1",
        ),
    ],
)
def test_wrong_options_are_told_in_one_line(
    library: Path, capsys: pytest.CaptureFixture[str], options: tuple[str, ...], told: str
) -> None:
    fixed = ["label", QUESTION, "--path", str(library), "--embedder", "hashing"]
    assert main([*fixed, *options]) == 2
    said = capsys.readouterr().err
    assert told in said
    assert said.count("\n") == 1


def test_the_service_says_when_the_reranker_is_away_and_goes_on_when_it_is_back(
    library: Path,
) -> None:
    replies: list[tuple[int, Any]] = [(503, {"message": "loading"})]
    good = scored(prefers("choir"))
    with model_host("/v1/rerank", lambda body: replies.pop() if replies else good(body)) as host:
        options = ("--embedder", "hashing", "--reranker-url", host.url, "--reranker-model", "m")
        with service(library, *options) as running:
            away = running.post("/v1/label", {"query": QUESTION})
            assert (away.status, away.error["code"]) == (503, "reranker_unavailable")
            assert away.headers["Retry-After"] == "1"
            back = running.post("/v1/label", {"query": QUESTION})
    assert (back.status, back.body["doc_id"]) == (200, "choir")


def test_what_the_reranker_refuses_is_not_to_be_asked_again(library: Path) -> None:
    replies = [(400, {"message": "too long"}), (429, {"message": "too many"})]
    with model_host("/v1/rerank", lambda body: replies.pop(0)) as host:
        options = ("--embedder", "hashing", "--reranker-url", host.url, "--reranker-model", "m")
        with service(library, *options) as running:
            refused = running.post("/v1/label", {"query": QUESTION})
            busy = running.post("/v1/label", {"query": QUESTION})
    assert (refused.status, refused.error["code"]) == (502, "reranker_refused")
    assert "too long" in refused.error["message"]
    assert "Retry-After" not in refused.headers
    assert (busy.status, busy.error["code"]) == (503, "reranker_unavailable")


@pytest.mark.parametrize("status", [300, 401, 404, 408, 425, 429, 499, 500, 501, 503])
async def test_a_status_says_whether_to_come_again(status: int) -> None:
    with model_host("/v1/rerank", lambda body: (status, {"message": "no"})) as host:
        async with open_reranker(RerankerSpec(host.url, "m")) as reranker:
            assert reranker is not None
            with pytest.raises(RerankerError) as told:
                await reranker.relevances(QUESTION, ["a log"])
    later = (408, 425, 429, 500, 503)
    assert told.type is (RerankerError if status in later else RerankerRefusal)


async def test_a_label_waits_for_a_thread_once_and_says_so(
    library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slow_excerpt(*given: Any) -> str:
        time.sleep(0.1)
        return excerpt(*given)

    monkeypatch.setattr("rag_store.search.excerpt", slow_excerpt)
    answer, good, may_end = [], scored(prefers("choir")), threading.Event()
    with model_host("/v1/rerank", lambda body: answer[0](body)) as host:
        settings = Settings(
            path=library,
            embedder=EmbedderSpec("hashing"),
            threads=1,
            reranker=RerankerSpec(host.url, "m"),
        )
        async with open_library(settings) as opened:

            def busy(body: dict[str, Any]) -> tuple[int, Any]:
                opened._searching.submit(may_end.wait, 60)
                return good(body)

            answer.append(busy)
            opened._searching.submit(time.sleep, 1)
            try:
                timings = (await asyncio.wait_for(opened.label(QUESTION), 30)).timings
            finally:
                may_end.set()
    assert timings.rerank_ms >= 3 * 100
    assert timings.queue_ms >= 200


async def test_questions_that_wait_for_a_reranker_keep_no_scores_of_all_rows(
    library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, kept = list[weakref.ref[Any]](), list[bool]()

    def noted(*given: Any) -> RowScores:
        scores = score_rows(*given)
        made.append(weakref.ref(scores.bm25))
        return scores

    monkeypatch.setattr("rag_store.search.score_rows", noted)
    with rerank_host(prefers("choir")) as host:
        reranker = RerankerSpec(host.url, "m")
        settings = Settings(path=library, embedder=EmbedderSpec("hashing"), reranker=reranker)
        async with open_library(settings) as opened:
            assert opened._reranker is not None
            relevances = opened._reranker.relevances

            async def asked(*given: Any) -> list[float]:
                kept.extend(each() is not None for each in made)
                return await relevances(*given)

            monkeypatch.setattr(opened._reranker, "relevances", asked)
            assert (await opened.label(QUESTION)).candidates[0].relevance is not None
    assert kept == [False]


def test_only_reranked_labels_have_a_time_of_that_stage(library: Path) -> None:
    with rerank_host(prefers("choir")) as host:
        named = ("--reranker-url", host.url, "--reranker-model", "m")
        for options, timed in (((), False), (named, True)):
            with service(library, "--embedder", "hashing", *options) as running:
                assert running.post("/v1/label", {"query": QUESTION}).status == 200
                assert ('{stage="rerank"}' in str(running.get("/metrics").body)) is timed


def entry(text: str, chunker: Chunker) -> Entry:
    cut = chunker.cut(text)
    rows = [Row("d", "Title", "", at, len(cut), c.start, c.text, 0) for at, c in enumerate(cut)]
    return Entry(tuple(rows), np.zeros((len(rows), 1), np.float32))


def test_an_excerpt_is_the_best_chunks_in_order_with_what_they_share_said_once() -> None:
    words = [f"word{at}" for at in range(60)]
    made = entry(" ".join(words), Chunker(10, 4))
    bm25 = np.zeros(len(made.rows), np.float32)
    bm25[[1, 2, 6]] = 1
    title, told = excerpt(made, np.zeros(1, np.float32), bm25, 3).split("\n")
    first, second = told.split(" … ")
    assert title == "Title"
    together = made.rows[1].text + made.rows[2].text
    assert first.split() == list(dict.fromkeys(together.split()))
    assert second == made.rows[6].text.strip()
    assert excerpt(made, np.zeros(1, np.float32), bm25, 1) == f"Title\n{made.rows[1].text.strip()}"


async def test_so_many_are_with_the_server_at_once_and_the_others_run_into_no_timeout() -> None:
    with rerank_host(prefers("log")) as host:
        async with open_reranker(RerankerSpec(host.url, "m", timeout_s=2.0)) as reranker:
            assert reranker is not None
            asked = [reranker.relevances(QUESTION, ["a log", "bread"]) for _ in range(40)]
            assert await asyncio.gather(*asked) == [[0.75, 0.25]] * 40
    assert host.most_inside <= AT_ONCE


def slow(body: dict[str, Any]) -> tuple[int, Any]:
    time.sleep(0.5)
    return 200, {}


async def test_a_server_that_does_not_answer_in_time_is_told() -> None:
    with model_host("/v1/rerank", slow) as host:
        async with open_reranker(RerankerSpec(host.url, "m", timeout_s=0.1)) as reranker:
            assert reranker is not None
            with pytest.raises(RerankerError, match=r"not answered in 0\.1 s: have it read less"):
                await reranker.relevances(QUESTION, ["a log"])


def test_an_excerpt_heeds_vectors_as_it_heeds_words() -> None:
    made = entry(" ".join(f"word{at}" for at in range(60)), Chunker(10, 0))
    vectors = np.zeros((len(made.rows), 2), np.float32)
    vectors[:, 1], vectors[4] = 1, (1, 0)
    near = Entry(made.rows, vectors)
    none = np.zeros(len(made.rows), np.float32)
    query = np.array([1, 0], np.float32)
    assert excerpt(near, query, none, 1) == f"Title\n{made.rows[4].text.strip()}"


@pytest.mark.parametrize("url", ["http://h", "http://h/", "http://h/v1", "http://h/v1/"])
def test_a_url_may_name_the_version(url: str) -> None:
    assert RerankerSpec(url, "m").route == "http://h/v1/rerank"


async def test_nobody_else_gets_the_question_or_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RERANKER_API_KEY", "secret")
    with rerank_host(prefers("log")) as other:
        headers = {"Location": f"{other.url}/v1/rerank"}
        moved = lambda body: (307, web.Response(status=307, headers=headers))  # noqa: E731
        with model_host("/v1/rerank", moved) as host:
            async with open_reranker(RerankerSpec(host.url, "m")) as reranker:
                assert reranker is not None
                with pytest.raises(RerankerRefusal, match="HTTP 307"):
                    await reranker.relevances(QUESTION, ["a log"])
    assert (len(host.bodies), other.bodies) == (1, [])


async def test_a_connection_that_is_never_made_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rag_store.model_server.CONNECT_S", 0.2)
    with full_backlog() as port:
        async with open_reranker(RerankerSpec(f"http://127.0.0.1:{port}", "m")) as reranker:
            assert reranker is not None
            with pytest.raises(RerankerError, match=r"cannot reach .*: no connection in 0\.2 s"):
                await reranker.relevances(QUESTION, ["a log"])


@contextmanager
def full_backlog() -> Iterator[int]:
    """A port whose listener takes no connection any more."""
    with ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(3):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(listener.getsockname())
        yield int(listener.getsockname()[1])
