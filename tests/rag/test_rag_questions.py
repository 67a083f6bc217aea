"""Questions that documents bring along: indexed as rows of theirs, searched, explained."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from service_process import service

from rag_store.cli.main import main
from rag_store.embedders import HashingEmbedder
from rag_store.embedders.protocol import Embedding

TEXTS = {
    "paging": "The cache is cut into blocks, which a table maps to pages.",
    "raft": "A leader replicates its log to the followers.",
    "dough": "Bread rises when yeast ferments the dough.",
}
FOUND_BY_QUESTION = "why does my loaf get bigger overnight"
BROUGHT = "Why does a loaf get bigger overnight?"


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "corpus.jsonl"
    write(path, dough=[BROUGHT], raft=["Who is in charge?"])
    return path


def write(path: Path, **questions: list[str]) -> None:
    rows = [
        {"doc_id": name, "text": text, "questions": questions.get(name, [])}
        for name, text in TEXTS.items()
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture
def embedded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The texts that were embedded since it was last cleared."""
    texts: list[str] = []
    embed = HashingEmbedder.embed

    def kept(embedder: HashingEmbedder, given: Sequence[str]) -> list[Embedding]:
        texts.extend(given)
        return embed(embedder, given)

    monkeypatch.setattr(HashingEmbedder, "embed", kept)
    return texts


def rag(capsys: pytest.CaptureFixture[str], path: Path, *arguments: object) -> str:
    fixed = ["--path", path, "--embedder", "hashing"]
    code = main(list(map(str, [*arguments, *fixed])))
    told = capsys.readouterr()
    assert code == 0, told.err
    return told.out


def test_only_a_document_whose_questions_change_is_embedded_anew(
    corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], embedded: list[str]
) -> None:
    library = tmp_path / "library"
    told = rag(capsys, library, "index", corpus)
    assert told.startswith("3 added")
    assert "3 documents in 3 chunks and 2 questions" in told
    embedded.clear()
    assert rag(capsys, library, "index", corpus).startswith("0 added, 0 updated, 3 unchanged")
    assert embedded == []
    write(corpus, dough=[BROUGHT], raft=["Who is in charge?", "Who follows?"])
    assert rag(capsys, library, "index", corpus).startswith("0 added, 1 updated, 2 unchanged")
    assert "Who follows?" in embedded
    assert not any("dough" in text or "loaf" in text for text in embedded)
    write(corpus)
    told = rag(capsys, library, "index", corpus)
    assert told.endswith("0 added, 2 updated, 1 unchanged, 0 removed: 3 documents in 3 chunks\n")


def test_a_question_is_embedded_once(
    corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], embedded: list[str]
) -> None:
    rag(capsys, tmp_path / "library", "index", corpus)
    assert embedded.count(BROUGHT) == 1
    embedded.clear()
    for states in (tmp_path / "library" / "states").glob("*/*.states"):
        states.unlink()
    rag(capsys, tmp_path / "library", "label", FOUND_BY_QUESTION)
    assert embedded.count(BROUGHT) == 1, "its states were gone"


def test_a_document_is_found_by_its_question_and_explain_says_so(
    corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    library = tmp_path / "library"
    rag(capsys, library, "index", corpus)
    explained = rag(capsys, library, "explain", FOUND_BY_QUESTION)
    assert "label       dough" in explained
    assert f"question    {BROUGHT} (of dough, not in its text)" in explained
    assert "chunk " not in explained
    first = json.loads(rag(capsys, library, "explain", FOUND_BY_QUESTION, "--json"))["candidates"][
        0
    ]
    assert (first["question"], first["chunk"]) == (BROUGHT, 1)


def test_the_service_takes_questions_and_tells_what_it_holds(tmp_path: Path) -> None:
    plain = {"doc_id": "dough", "title": "Dough", "text": TEXTS["dough"]}
    with service(tmp_path) as running:
        assert running.post("/v1/documents", {**plain, "questions": [BROUGHT, ""]}).status == 201
        ready = running.get("/ready").body
        assert (ready["chunks"], ready["questions"]) == (1, 1)
        first = running.post("/v1/label", {"query": FOUND_BY_QUESTION}).body["candidates"][0]
        assert first["question"] == BROUGHT
        assert running.get("/v1/documents/dough").body["questions"] == [BROUGHT]
        retrieved = running.post("/v1/retrieve", {"query": FOUND_BY_QUESTION}).body["document"]
        assert retrieved == plain, "what is sent to an engine is the text"
        digest = running.get("/v1/documents").body["data"][0]["text_digest"]
        other = {**plain, "text": TEXTS["dough"].replace(" ", " \n"), "questions": []}
        assert running.post("/v1/documents", other).body["result"] == "updated"
        assert running.get("/v1/documents").body["data"][0]["text_digest"] == digest
        assert running.get("/ready").body["corpus_digest"] == ready["corpus_digest"]
        running.post("/v1/documents", {**plain, "text": "Another text."})
        assert running.get("/ready").body["corpus_digest"] != ready["corpus_digest"]
        refused = running.post("/v1/documents", {**plain, "questions": "Who?"})
        assert (refused.status, refused.error["param"]) == (422, "document.questions")
