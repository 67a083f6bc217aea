"""Questions written for documents: indexed, searched, explained, switched off."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from service_process import service

from rag_store.chunking import Chunker
from rag_store.cli.main import main
from rag_store.embedders import Embedding
from rag_store.embedders.hashing import HashingEmbedder
from rag_store.readers import read_documents, read_queries

TEXTS = {
    "paging": "The cache is cut into blocks, which a table maps to pages.",
    "raft": "A leader replicates its log to the followers.",
    "dough": "Bread rises when yeast ferments the dough.",
}
FOUND_BY_EXPANSION = "why does my loaf get bigger overnight"
EXPANSION = "Why does a loaf get bigger overnight?"


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    folder = tmp_path / "corpus"
    folder.mkdir()
    for name, text in TEXTS.items():
        (folder / f"{name}.txt").write_text(text)
    write(folder, dough=[EXPANSION], raft=["Who is in charge?"])
    return folder


def write(folder: Path, **questions: list[str]) -> None:
    rows = [{"doc_id": doc_id, "questions": asked} for doc_id, asked in questions.items()]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / "expansions.jsonl").write_text(lines)


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
    assert "3 documents in 3 chunks and 2 expansions" in told
    embedded.clear()
    assert rag(capsys, library, "index", corpus).startswith("0 added, 0 updated, 3 unchanged")
    assert embedded == []
    write(corpus, dough=[EXPANSION], raft=["Who is in charge?", "Who follows?"])
    assert rag(capsys, library, "index", corpus).startswith("0 added, 1 updated, 2 unchanged")
    assert "Who follows?" in embedded
    assert not any("dough" in text or "loaf" in text for text in embedded)
    embedded.clear()
    told = rag(capsys, library, "index", corpus, "--expansions", "off")
    assert told.endswith("0 added, 2 updated, 1 unchanged, 0 removed: 3 documents in 3 chunks\n")


def test_a_question_is_embedded_once(
    corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], embedded: list[str]
) -> None:
    rag(capsys, tmp_path / "library", "index", corpus)
    assert embedded.count(EXPANSION) == 1
    embedded.clear()
    for states in (tmp_path / "library" / "states").glob("*/*.npz"):
        states.unlink()
    rag(capsys, tmp_path / "library", "label", FOUND_BY_EXPANSION)
    assert embedded.count(EXPANSION) == 1, "its states were gone"


def test_a_document_is_found_by_its_question_and_explain_says_so(
    corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    library = tmp_path / "library"
    rag(capsys, library, "index", corpus)
    explained = rag(capsys, library, "explain", FOUND_BY_EXPANSION)
    assert "label       dough" in explained
    assert f"expansion   {EXPANSION} (written for dough, not in its text)" in explained
    assert "chunk " not in explained
    first = json.loads(rag(capsys, library, "explain", FOUND_BY_EXPANSION, "--json"))["candidates"][
        0
    ]
    assert (first["question"], first["chunk"]) == (EXPANSION, 1)
    without = rag(capsys, library, "explain", FOUND_BY_EXPANSION, "--expansions", "off")
    assert "expansion  " not in without
    assert "chunk 0" in without


def test_eval_sets_the_library_beside_itself_without_them(
    corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = tmp_path / "questions.jsonl"
    rows = [{"qid": "1", "question": FOUND_BY_EXPANSION, "doc_id": "dough"},
            {"qid": "2", "question": "Who is in charge", "doc_id": "raft"}]  # fmt: skip
    asked.write_text("".join(json.dumps(row) + "\n" for row in rows))
    options = ("eval", "--corpus", corpus, "--questions", asked)
    found = json.loads(rag(capsys, tmp_path, *options, "--json"))
    assert (found["top1"], found["expansions"]) == (1, 2)
    assert found["baselines"]["bm25"]["top1"] == 1
    assert found["baselines"]["without_expansions"]["top1"] < 1
    assert found["baselines"]["without_expansions"]["only_ours"] > 0
    off = json.loads(rag(capsys, tmp_path, *options, "--json", "--expansions", "off"))
    assert off["top1"] == found["baselines"]["without_expansions"]["top1"]
    assert off["expansions"] == 0
    assert "without_expansions" not in off["baselines"]


def test_the_service_takes_questions_and_tells_what_it_holds(tmp_path: Path) -> None:
    plain = {"doc_id": "dough", "title": "Dough", "text": TEXTS["dough"]}
    with service(tmp_path) as running:
        assert running.post("/v1/documents", {**plain, "questions": [EXPANSION, ""]}).status == 201
        ready = running.get("/ready").body
        assert (ready["chunks"], ready["expansions"]) == (1, 1)
        first = running.post("/v1/label", {"query": FOUND_BY_EXPANSION}).body["candidates"][0]
        assert first["question"] == EXPANSION
        assert running.get("/v1/documents/dough").body["questions"] == [EXPANSION]
        retrieved = running.post("/v1/retrieve", {"query": FOUND_BY_EXPANSION}).body["document"]
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


def test_every_document_of_the_demo_corpus_has_expansions_that_are_no_development_question() -> (
    None
):
    folder = Path(__file__).parents[2] / "loadgen" / "workload" / "demo_corpus"
    asked = {query.text.casefold() for query in read_queries(folder, "dev")}
    for document in read_documents(folder):
        passages = 3 * len(Chunker().cut(document.tidy().text))
        assert len(document.questions) == 24 + passages
        assert not asked & {question.casefold() for question in document.questions}


def test_questions_written_for_another_text_count_for_nothing(corpus: Path) -> None:
    current = {each.doc_id: each.text_digest for each in read_documents(corpus)}
    rows = [
        {"doc_id": "dough", "questions": [EXPANSION], "digest": current["dough"]},
        {"doc_id": "raft", "questions": ["Who is in charge?"], "digest": "0" * 32},
        {"doc_id": "gone", "questions": ["Who was in charge?"], "digest": "0" * 32},
    ]
    (corpus / "expansions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = {each.doc_id: each.questions for each in read_documents(corpus)}
    assert found == {"dough": (EXPANSION,), "paging": (), "raft": ()}
