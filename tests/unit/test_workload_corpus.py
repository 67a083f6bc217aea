import json
import os
import re
import sys
from pathlib import Path

import pytest

from loadgen.errors import CorpusError
from loadgen.workload.corpus import GENERAL_QUESTION, load_corpus, unread_notes
from rag_store.errors import RagError
from rag_store.readers import read_documents

QUESTION = {"qid": "q1", "question": "What is cached?", "doc_id": "a"}


def write_lines(path: Path, *rows: object) -> Path:
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows))
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "b.txt").write_text("Second text.\n\nIts end.\n")
    (tmp_path / "a.md").write_text("Preface.\n\n# On caches\n\nFirst text.\n")
    (tmp_path / "notes.pdf").write_bytes(b"\xff")
    (tmp_path / ".hidden.md").write_text("")
    write_lines(tmp_path / "questions-1.jsonl", QUESTION)
    return tmp_path


def test_a_folder_is_read_in_the_order_of_names(folder: Path) -> None:
    corpus = load_corpus(folder, None)
    assert [(each.doc_id, each.title) for each in corpus.documents] == [
        ("a", "On caches"),
        ("b", "b"),
    ]
    assert corpus.documents[0].text == "Preface.\n\n# On caches\n\nFirst text."


def test_each_document_has_a_question(folder: Path) -> None:
    write_lines(folder / "questions-2.jsonl", {**QUESTION, "qid": "q2", "question": "Why?"})
    questions = load_corpus(folder, None).questions
    assert [each.question_id for each in questions["a"]] == ["q1", "q2"]
    assert [(each.question_id, each.text) for each in questions["b"]] == [
        ("b-general", GENERAL_QUESTION)
    ]


def test_jsonl_with_its_own_question_file(tmp_path: Path) -> None:
    first = {"doc_id": "z", "title": "", "text": "Last\u2028first."}
    texts = write_lines(
        tmp_path / "texts.jsonl", first, "", {"doc_id": "a", "title": "A\n1", "text": "x"}
    )
    corpus = load_corpus(texts, write_lines(tmp_path / "asked.json", QUESTION))
    assert [(each.doc_id, each.title, each.text) for each in corpus.documents] == [
        ("z", "z", "Last\u2028first."),
        ("a", "A 1", "x"),
    ]


def test_raw_line_separators_do_not_split_a_json_line(tmp_path: Path) -> None:
    row = json.dumps({"doc_id": "a", "title": "A", "text": "one\u2028two\x85"}, ensure_ascii=False)
    write_lines(tmp_path / "questions.jsonl", QUESTION)
    assert len(load_corpus(write_lines(tmp_path / "texts.jsonl", row)).documents) == 1


def test_questions_are_found_beside_a_jsonl_corpus(tmp_path: Path) -> None:
    texts = write_lines(tmp_path / "texts.jsonl", {"doc_id": "a", "title": "A", "text": "x"})
    write_lines(tmp_path / "questions.jsonl", QUESTION)
    assert load_corpus(texts).questions["a"][0].text == "What is cached?"


def test_files_are_cleaned(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"  One.\r\nTwo\x00three.   \n \n\n\n    code\n")
    write_lines(tmp_path / "questions.jsonl", QUESTION)
    assert load_corpus(tmp_path).documents[0].text == "One.\nTwo three.\n\n    code"


def test_halves_of_surrogate_pairs_do_not_outlive_loading(tmp_path: Path) -> None:
    row = {"doc_id": "a", "title": "\ud800A", "text": "One\udc00two \U0001f600"}
    texts = write_lines(tmp_path / "texts.jsonl", row)
    write_lines(tmp_path / "questions.jsonl", {**QUESTION, "question": "Why\x00\ud83d?"})
    corpus = load_corpus(texts)
    document, question = corpus.documents[0], corpus.questions["a"][0]
    assert (document.title, document.text) == ("A", "One two \U0001f600")
    assert question.text == "Why  ?"


def test_a_byte_order_mark_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_bytes(b"\xef\xbb\xbf# Title\n\nText.")
    write_lines(tmp_path / "questions.jsonl", QUESTION)
    assert load_corpus(tmp_path).documents[0].title == "Title"


DOCUMENT = {"doc_id": "a", "title": "A", "text": "Text."}


@pytest.mark.parametrize(
    ("rows", "telling"),
    [
        ([], "holds no document"),
        ([DOCUMENT, "{"], "texts.jsonl:2: not JSON"),
        ([DOCUMENT, "[" * 100_000], "texts.jsonl:2: not JSON"),
        (["[1]"], "texts.jsonl:1: not a JSON object"),
        ([{"title": "A", "text": "x"}], "texts.jsonl:1: field 'doc_id' is missing"),
        ([{**DOCUMENT, "text": None}], "texts.jsonl:1: field 'text' is not a string"),
        ([{**DOCUMENT, "text": " \n\x00"}], "texts.jsonl:1: field 'text' is empty"),
        ([{**DOCUMENT, "doc_id": ""}], "texts.jsonl:1: field 'doc_id' is no usable id"),
        ([{**DOCUMENT, "doc_id": "a\ud800"}], "texts.jsonl:1: field 'doc_id' is no usable id"),
        ([{**DOCUMENT, "doc_id": "a\n"}], "texts.jsonl:1: field 'doc_id' is no usable id"),
        ([DOCUMENT, "", DOCUMENT], "texts.jsonl:3: doc_id 'a' stands twice"),
    ],
)
def test_bad_documents_name_file_line_and_field(
    tmp_path: Path, rows: list[object], telling: str
) -> None:
    texts = write_lines(tmp_path / "texts.jsonl", *rows)
    write_lines(tmp_path / "questions.jsonl", QUESTION)
    assert telling in refusal(texts)


@pytest.mark.parametrize(
    ("rows", "telling"),
    [
        ([], "holds no question"),
        ([QUESTION, {"qid": "q2", "question": "Why?"}], "asked.jsonl:2: field 'doc_id' is missing"),
        ([{**QUESTION, "question": ""}], "asked.jsonl:1: field 'question' is empty"),
        ([{**QUESTION, "qid": 7}], "asked.jsonl:1: field 'qid' is not a string"),
        ([QUESTION, QUESTION], "asked.jsonl:2: qid 'q1' stands twice"),
        ([{**QUESTION, "doc_id": "c"}], "asked.jsonl:1: field 'doc_id' names no document: 'c'"),
    ],
)
def test_bad_questions_name_file_line_and_field(
    folder: Path, rows: list[object], telling: str
) -> None:
    assert telling in refusal(folder, write_lines(folder / "asked.jsonl", *rows))


def test_a_document_without_a_title_has_its_id_as_one(tmp_path: Path) -> None:
    texts = write_lines(tmp_path / "texts.jsonl", {"doc_id": "a", "text": "x"})
    write_lines(tmp_path / "questions.jsonl", QUESTION)
    assert load_corpus(texts).documents[0].title == "a"


def test_what_retrieval_would_refuse_is_refused_alike(tmp_path: Path) -> None:
    write_lines(tmp_path / "questions.jsonl", QUESTION)
    for row in ({**DOCUMENT, "doc_id": "a" * 600}, {**DOCUMENT, "text": "a" * 4_000_001}):
        texts = write_lines(tmp_path / "texts.jsonl", row)
        with pytest.raises(RagError) as theirs:
            read_documents(texts)
        assert refusal(texts) == str(theirs.value)
        assert CorpusError.exit_code == theirs.value.exit_code == 2


def test_what_is_passed_over_is_named(folder: Path) -> None:
    (folder / "unanswerable.jsonl").write_text("")
    (folder / "more").mkdir()
    (note,) = unread_notes(folder)
    assert note.endswith("as only .md and .txt are read: more/, notes.pdf")
    assert unread_notes() == ()


def test_a_beir_folder_is_read_as_retrieval_reads_it(tmp_path: Path) -> None:
    write_lines(tmp_path / "corpus.jsonl", {"_id": "a", "title": "A", "text": "x"})
    write_lines(tmp_path / "queries.jsonl", {"_id": "q", "text": "What is cached?"})
    (tmp_path / "qrels").mkdir()
    (tmp_path / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq\ta\t1\n")
    corpus = load_corpus(tmp_path)
    assert [each.doc_id for each in corpus.documents] == ["a"]
    assert corpus.questions["a"][0].text == "What is cached?"


def test_missing_paths(folder: Path, tmp_path: Path) -> None:
    assert f"{tmp_path / 'none'} does not exist" in refusal(tmp_path / "none")
    assert f"{tmp_path / 'none'} do not exist" in refusal(folder, tmp_path / "none")


def test_a_folder_without_texts_or_without_questions(tmp_path: Path) -> None:
    assert f"{tmp_path} holds no document" in refusal(tmp_path)
    (tmp_path / "a.md").write_text("Text.")
    assert f"{tmp_path} holds no question" in refusal(tmp_path)


def test_a_folder_as_the_first_page_has_it_is_read(tmp_path: Path) -> None:
    page = Path(__file__).parents[2] / "docs" / "start" / "first-run.md"
    (said,) = re.findall(r"^- `--corpus texts/`: (.*)$", page.read_text(), re.M)
    text, markdown, questions, *fields = re.findall(r"`([\w.]+)`", said)
    assert fields == list(QUESTION)
    (tmp_path / f"a{markdown}").write_text("Text.")
    (tmp_path / f"b{text}").write_text("More text.")
    write_lines(tmp_path / questions, QUESTION)
    assert [each.doc_id for each in load_corpus(tmp_path).documents] == ["a", "b"]


def test_an_empty_file_and_one_that_is_not_utf8(folder: Path) -> None:
    (folder / "a.md").write_bytes(b"fine\nna\xefve\n")
    assert f"{folder / 'a.md'}:2: not UTF-8" in refusal(folder)
    (folder / "a.md").write_text(" \n\n")
    assert f"{folder / 'a.md'} is empty" in refusal(folder)


def test_two_files_of_one_stem(folder: Path) -> None:
    (folder / "a.txt").write_text("Another.")
    assert "a.txt: doc_id 'a' stands twice" in refusal(folder)


def test_a_folder_named_like_a_text_is_refused(folder: Path) -> None:
    (folder / "c.md").mkdir()
    assert f"{folder / 'c.md'} is no regular file" in refusal(folder)


@pytest.mark.skipif(sys.platform == "darwin", reason="the file system refuses such names")
def test_a_file_name_that_is_no_text(folder: Path) -> None:
    (folder / "b.txt").rename(folder / os.fsdecode(b"\xff.txt"))
    assert "is no usable id" in refusal(folder)


def refusal(corpus: Path, questions: Path | None = None) -> str:
    with pytest.raises(CorpusError) as error:
        load_corpus(corpus, questions)
    message = str(error.value)
    assert "\n" not in message
    message.encode()
    return message


def test_the_demo_corpus_is_shipped() -> None:
    corpus = load_corpus()
    assert len(corpus.documents) == 24
    assert all(len(corpus.questions[each.doc_id]) == 8 for each in corpus.documents)


def test_a_corpus_is_read_again_once_it_has_changed(folder: Path) -> None:
    before = load_corpus(folder)
    assert load_corpus(folder) is before
    (folder / "a.md").write_text("# Another\n\nOther words than before.")
    titles = [document.title for document in load_corpus(folder).documents]
    assert "Another" in titles


def test_a_pipe_in_a_folder_is_refused_and_not_waited_for(folder: Path) -> None:
    os.mkfifo(folder / "c.txt")
    with pytest.raises(CorpusError, match=r"c\.txt is no regular file"):
        load_corpus(folder, None)
    (folder / "c.txt").unlink()
    os.mkfifo(folder / "questions-2.jsonl")
    with pytest.raises(CorpusError, match=r"questions-2\.jsonl is no regular file"):
        load_corpus(folder, None)


def test_a_device_is_not_read_until_it_ends(folder: Path) -> None:
    for place in ((Path("/dev/zero"), None), (folder, Path("/dev/zero"))):
        with pytest.raises(CorpusError, match="/dev/zero is a device"):
            load_corpus(*place)


def test_a_path_that_cannot_be_looked_at(folder: Path) -> None:
    with pytest.raises(CorpusError, match="too long"):
        load_corpus(Path("a" * 5000), None)
    with pytest.raises(CorpusError, match="too long"):
        load_corpus(folder, folder / ("a" * 5000))
