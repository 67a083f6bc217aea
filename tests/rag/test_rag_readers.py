"""Corpora, questions and judgements in every format; errors say where."""

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rag_store.documents import Document, Query
from rag_store.errors import CorpusError
from rag_store.readers import read_documents, read_judged, read_queries
from rag_store.readers.formats import read_qrels

Read = Callable[[Path], object]


def lines(path: Path, *rows: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(json.dumps(row) for row in rows) + "\n")
    return path


def test_a_folder_gives_stems_and_first_headings(tmp_path: Path) -> None:
    (tmp_path / "b.md").write_text("Intro\n# Bees\nThey fly.\x00")
    (tmp_path / "a.txt").write_text("Ants walk.")
    (tmp_path / ".hidden.md").write_text("no")
    assert read_documents(tmp_path) == (
        Document("a", "a", "Ants walk."),
        Document("b", "Bees", "Intro\n# Bees\nThey fly."),
    )


def test_a_document_may_bring_questions(tmp_path: Path) -> None:
    own = {"doc_id": "a", "text": "x", "questions": ["Who?", "who? ", "", "Why\nnot?"]}
    path = lines(tmp_path / "texts.jsonl", own, {"doc_id": "b", "text": "y"})
    assert [each.questions for each in read_documents(path)] == [("Who?", "Why not?"), ()]


@pytest.mark.parametrize("questions", ["Who?", [1], ["Who?", None]])
def test_questions_that_cannot_be_read_say_where(tmp_path: Path, questions: object) -> None:
    row = {"doc_id": "a", "text": "x", "questions": questions}
    said = "texts.jsonl:1: field 'questions' is no list of strings"
    with pytest.raises(CorpusError, match=said):
        read_documents(lines(tmp_path / "texts.jsonl", row))


def test_our_jsonl_with_one_many_and_no_documents(tmp_path: Path) -> None:
    path = lines(
        tmp_path / "questions.jsonl",
        {"qid": "1", "question": "one?", "doc_id": "a"},
        {"qid": "2", "question": "two?", "doc_id": ["a", "b", "a"]},
        {"qid": "3", "question": "none?", "doc_id": None},
    )
    expected = (Query("1", "one?", ("a",)), Query("2", "two?", ("a", "b")), Query("3", "none?"))
    assert read_queries(path) == expected
    assert read_queries(tmp_path) == expected


def test_a_beir_folder_gives_the_queries_its_test_split_judges(tmp_path: Path) -> None:
    lines(tmp_path / "corpus.jsonl", {"_id": "d1", "title": "T", "text": "x"})
    lines(tmp_path / "queries.jsonl", {"_id": "q1", "text": "x?"}, {"_id": "q2", "text": "y?"})
    (tmp_path / "qrels").mkdir()
    (tmp_path / "qrels/test.tsv").write_text("query-id\tcorpus-id\tscore\nq1\td1\t1\nq1\td2\t0\n")
    assert read_documents(tmp_path) == (Document("d1", "T", "x"),)
    assert read_queries(tmp_path) == (Query("q1", "x?", ("d1",), split="test"),)
    (tmp_path / "qrels/dev.tsv").write_text("query-id\tcorpus-id\tscore\nq2\td1\t1\n")
    assert read_queries(tmp_path, "dev") == (Query("q2", "y?", ("d1",), split="dev"),)


def test_a_folder_with_a_corpus_is_read_without_queries(tmp_path: Path) -> None:
    lines(tmp_path / "corpus.jsonl", {"_id": "d1", "title": "T", "text": "x"})
    (tmp_path / "README.md").write_text("About the corpus.")
    lines(tmp_path / "questions.jsonl", {"qid": "1", "question": "one?", "doc_id": "d1"})
    assert read_documents(tmp_path) == (Document("d1", "T", "x"),)
    assert read_queries(tmp_path) == (Query("1", "one?", ("d1",)),)


def test_a_beir_document_of_a_title_alone_is_its_title(tmp_path: Path) -> None:
    only, nothing = {"_id": "d1", "title": "On\nants", "text": " "}, {"_id": "d2", "text": ""}
    path = lines(tmp_path / "corpus.jsonl", only, nothing, {"_id": "d3", "title": "", "text": "x"})
    assert read_documents(path) == (Document("d1", "On ants", "On ants"), Document("d3", "d3", "x"))
    ours = lines(tmp_path / "ours.jsonl", {"doc_id": "a", "title": "On ants", "text": " "})
    with pytest.raises(CorpusError, match=r"ours.jsonl:1: field 'text' is empty: fill it or drop"):
        read_documents(ours)
    with pytest.raises(CorpusError, match=r"bare.jsonl holds no document"):
        read_documents(lines(tmp_path / "bare.jsonl", nothing))


def test_a_split_of_our_jsonl_and_the_kinds_of_its_questions(tmp_path: Path) -> None:
    path = lines(
        tmp_path / "questions-1.jsonl",
        {"qid": "1", "question": "one?", "doc_id": "a", "split": "dev", "kind": "direct"},
        {"qid": "2", "question": "two?", "doc_id": "a", "split": "test"},
        {"qid": "3", "question": "three?", "doc_id": "a"},
    )
    dev = Query("1", "one?", ("a",), "direct", "dev")
    assert read_queries(path, "dev") == read_queries(tmp_path, "dev") == (dev,)
    assert [query.query_id for query in read_queries(path)] == ["1", "2", "3"]
    with pytest.raises(CorpusError, match=r"no question of the split 'tset': its splits are dev, "):
        read_queries(path, "tset")
    plain = lines(tmp_path / "plain.jsonl", {"qid": "1", "question": "one?", "doc_id": "a"})
    with pytest.raises(CorpusError, match=r"its rows have no field 'split'"):
        read_queries(plain, "dev")


def test_trec_judgements_count_above_zero(tmp_path: Path) -> None:
    path = tmp_path / "qrels.txt"
    path.write_text("q1 0 d1 1\nq1 0 d2 2\nq1 0 d3 0\nq2 0 d1 -1\n")
    assert read_qrels(path) == {"q1": ("d1", "d2"), "q2": ()}


def test_trec_judgements_may_have_tabs_and_spaces_between_them(tmp_path: Path) -> None:
    path = tmp_path / "qrels.txt"
    path.write_text("q1 0\td1\t1\nq1\tQ0 d2\t1\nq1 0\td3 1\n")
    assert read_qrels(path) == {"q1": ("d1", "d2", "d3")}


def test_judgements_between_tabs_have_spaces_in_their_ids(tmp_path: Path) -> None:
    path = tmp_path / "test.tsv"
    path.write_text("query-id\tcorpus-id\tscore\nq1\tAbout Raft\t1\nq 2\t0\td2\t1\n")
    assert read_qrels(path) == {"q1": ("About Raft",), "q 2": ("d2",)}
    path.write_text("q1\t\td1\t1\t\nq1 0 d2\t1\n")
    assert read_qrels(path) == {"q1": ("d1", "d2")}


@pytest.mark.parametrize("kind", ["tsv", "jsonl", "beir"])
def test_judgements_of_their_own_file_say_which_documents_answer(tmp_path: Path, kind: str) -> None:
    (tmp_path / "x.tsv").write_text("q1\tone?\r\n\nq2\ttwo\tparts?\nq3\tthree?\n")
    asked = {"q1": "one?", "q2": "two parts?", "q3": "three?"}
    rows = [{"_id": query_id, "text": text} for query_id, text in asked.items()]
    lines(tmp_path / "x.jsonl", *rows)
    lines(tmp_path / "x.beir/queries.jsonl", *rows)
    lines(tmp_path / "x.beir/corpus.jsonl", {"_id": "d1", "text": "x"})
    (tmp_path / "qrels.txt").write_text("q1 0 d1 1\nq1 0 d2 2\nq2 0 d1 0\nq9 0 d1 1\n")
    found = read_judged(tmp_path / f"x.{kind}", qrels=tmp_path / "qrels.txt")
    assert found == (Query("q1", "one?", ("d1", "d2")), Query("q2", "two parts?"))


def test_judgements_count_before_documents_that_questions_name(tmp_path: Path) -> None:
    rows = {"qid": "1", "question": "one?", "doc_id": "a", "split": "dev"}, {"qid": "2",
            "question": "two?", "doc_id": "a", "split": "test"}  # fmt: skip
    path, qrels = lines(tmp_path / "q.jsonl", *rows), tmp_path / "qrels.txt"
    qrels.write_text("1 0 b 1\n2 0 b 1\n")
    assert read_judged(path, "dev", qrels) == (Query("1", "one?", ("b",), split="dev"),)
    assert [query.doc_ids for query in read_judged(path)] == [("a",), ("a",)]


def test_questions_without_any_document_are_refused(tmp_path: Path) -> None:
    path, qrels = tmp_path / "queries.jsonl", tmp_path / "qrels.txt"
    lines(path, {"_id": "q1", "text": "one?"})
    with pytest.raises(CorpusError, match=r"no question of .*queries.jsonl has a document: give j"):
        read_judged(path)
    qrels.write_text("q1 0 d1 0\n")
    with pytest.raises(CorpusError, match=r"no question of .*queries.jsonl has a document: give j"):
        read_judged(path, qrels=qrels)
    qrels.write_text("q2 0 d1 1\n")
    with pytest.raises(CorpusError, match=r"qrels.txt judges no question of .*queries.jsonl: give"):
        read_judged(path, qrels=qrels)


@pytest.mark.parametrize("line", ["q2", "q2\t", "\t two?", "q\x9b2\ttwo?"])
def test_a_wrong_line_of_a_table_of_questions_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "queries.tsv"
    path.write_text(f"q1\tone?\n{line}\n")
    with pytest.raises(CorpusError, match=r"queries.tsv:2: "):
        read_queries(path)


def test_squad_paragraphs_and_impossible_questions(tmp_path: Path) -> None:
    questions = [
        {"id": "1", "question": "a?"},
        {"id": "2", "question": "b?", "is_impossible": True},
    ]
    article = {"title": "The Sea", "paragraphs": [{"context": "Salt.", "qas": questions}]}
    path = tmp_path / "squad.json"
    path.write_text(json.dumps({"data": [article]}))
    assert read_documents(path) == (Document("The_Sea-0", "The Sea", "Salt."),)
    assert read_queries(path) == (Query("1", "a?", ("The_Sea-0",)), Query("2", "b?"))


@pytest.mark.parametrize("title", ["a\x9bb", "a\u202eb", "x" * 511])
def test_a_squad_title_that_gives_no_usable_id_is_named(tmp_path: Path, title: str) -> None:
    paragraph = {"context": "Salt.", "qas": [{"id": "1", "question": "a?"}]}
    path = tmp_path / "squad.json"
    path.write_text(json.dumps({"data": [{"title": title, "paragraphs": [paragraph]}]}))
    for read in (read_documents, read_queries):
        with pytest.raises(CorpusError, match=r"squad.json: data\[0\]: field 'title'") as raised:
            read(path)
        assert str(raised.value).isprintable()


def test_ids_and_titles_have_a_longest(tmp_path: Path) -> None:
    row = {"doc_id": "a" * 512, "title": "b" * 1000, "text": "x"}
    path = lines(tmp_path / "corpus.jsonl", row)
    assert read_documents(path) == (Document("a" * 512, "b" * 1000, "x"),)
    for name, most in (("doc_id", 512), ("title", 1000)):
        lines(path, {**row, name: "c" * (most + 1)})
        said = f"{most + 1} characters: use at most {most}"
        with pytest.raises(CorpusError, match=rf"corpus.jsonl:1: field '{name}': an? .* {said}$"):
            read_documents(path)
    headed = tmp_path / "folder" / "headed.md"
    headed.parent.mkdir()
    headed.write_text(f"# {'c' * 1001}")
    with pytest.raises(CorpusError, match=r"headed.md: a title of 1001 characters"):
        read_documents(headed.parent)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ('{"doc_id": "a", "title": "t"}', r"corpus.jsonl:2: field 'text' is missing"),
        ('{"doc_id": "a", "text": "  "}', r"corpus.jsonl:2: field 'text' is empty"),
        ('{"doc_id": "a", "text": 3}', r"corpus.jsonl:2: field 'text' is not a string"),
        ('{"doc_id": "", "text": "x"}', r"corpus.jsonl:2: field 'doc_id'"),
        ('{"doc_id": "first", "text": "x"}', r"corpus.jsonl:2: doc_id 'first' stands twice"),
        ("[1]", r"corpus.jsonl:2: not a JSON object"),
        ("{", r"corpus.jsonl:2: not JSON"),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, row: str, message: str) -> None:
    path = tmp_path / "corpus.jsonl"
    path.write_text('{"doc_id": "first", "text": "x"}\n' + row)
    with pytest.raises(CorpusError, match=message):
        read_documents(path)


def test_wrong_judgements_are_named(tmp_path: Path) -> None:
    path = tmp_path / "qrels.txt"
    path.write_text("q1 0 d1 1\nq1 0 d2 high\n")
    with pytest.raises(CorpusError, match=r"qrels.txt:2: field 'relevance' is 'high'"):
        read_qrels(path)
    path.write_text("q1 d1\n")
    with pytest.raises(CorpusError, match=r"qrels.txt:1: 2 fields"):
        read_qrels(path)


def test_squad_errors_name_the_place(tmp_path: Path) -> None:
    path = tmp_path / "squad.json"
    path.write_text(json.dumps({"data": [{"title": "T", "paragraphs": [{"qas": []}]}]}))
    with pytest.raises(CorpusError, match=r"data\[0\] paragraphs\[0\]: field 'context' is missing"):
        read_documents(path)


@pytest.mark.parametrize("read", [read_documents, read_queries, read_qrels])
def test_a_name_that_is_too_long_is_told(tmp_path: Path, read: Read) -> None:
    with pytest.raises(CorpusError, match=r"cannot read .*xxx: File name too long"):
        read(tmp_path / ("x" * 5000))


@pytest.mark.parametrize("read", [read_documents, read_queries])
@pytest.mark.parametrize("denied", ["stat", "iterdir"])
def test_a_folder_that_may_not_be_read_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read: Read, denied: str
) -> None:
    allowed = getattr(Path, denied)

    def deny(path: Path, *more: Any, **others: Any) -> Any:
        # Who may list a folder may still not look into it; and the other way round.
        if (path.parent if denied == "stat" else path) == tmp_path:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return allowed(path, *more, **others)

    monkeypatch.setattr(Path, denied, deny)
    with pytest.raises(CorpusError, match=r"cannot read .*: Permission denied: name "):
        read(tmp_path)


@pytest.mark.parametrize("make", [os.mkfifo, Path.mkdir], ids=["fifo", "folder"])
@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("b.txt", read_documents),
        ("questions-2.jsonl", read_queries),
    ],
)
def test_what_is_found_and_no_regular_file_is_named_and_not_waited_for(
    tmp_path: Path, make: Callable[[Path], None], name: str, read: Read
) -> None:
    (tmp_path / "a.txt").write_text("Ants walk.")
    lines(tmp_path / "questions-1.jsonl", {"qid": "1", "question": "one?", "doc_id": "a"})
    make(tmp_path / name)
    with pytest.raises(CorpusError, match=f"/{name} is no regular file: put one there"):
        read(tmp_path)


def test_a_pipe_that_is_named_is_read(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.write(writing, b'{"doc_id": "a", "text": "x"}\n')
    os.close(writing)
    try:
        assert read_documents(Path(f"/dev/fd/{reading}")) == (Document("a", "a", "x"),)
    finally:
        os.close(reading)


def test_bytes_that_are_no_text_are_named(tmp_path: Path) -> None:
    path = tmp_path / "corpus.jsonl"
    path.write_bytes(b'{"doc_id": "a", "text": "x"}\n\xff')
    with pytest.raises(CorpusError, match=r"corpus.jsonl:2: not UTF-8"):
        read_documents(path)
    with pytest.raises(CorpusError, match="does not exist"):
        read_documents(tmp_path / "nowhere")
