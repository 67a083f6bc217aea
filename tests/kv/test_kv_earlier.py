"""Which questions centroids are made of, and which are left to be asked."""

import json
from pathlib import Path

import pytest

from kv_reading import KvError
from kv_reading.labelling import Earlier, read_earlier, write_asked
from loadgen.launch.label_service import earlier_questions

ROWS = (("a", "One?", "dev"), ("a", "Two?", "test"), ("b", "Three?", "dev"), (None, "No?", "dev"))


def write(path: Path, rows: tuple[tuple[object, str, str], ...]) -> Path:
    lines = (
        json.dumps({"qid": f"q{at}", "question": text, "doc_id": doc_id, "split": split})
        for at, (doc_id, text, split) in enumerate(rows)
    )
    path.write_text("\n".join(lines) + "\n")
    return path


def test_centroids_are_of_dev_and_what_is_asked_of_test(tmp_path: Path) -> None:
    source = write(tmp_path / "questions.jsonl", ROWS)
    assert read_earlier(source) == [Earlier("a", "One?"), Earlier("b", "Three?")]
    assert read_earlier(source, "test") == [Earlier("a", "Two?")]
    asked = tmp_path / "asked.jsonl"
    assert write_asked(source, asked)
    assert read_earlier(asked) == read_earlier(source, "test")


def test_without_splits_all_are_earlier_and_none_is_left_out(tmp_path: Path) -> None:
    plain = tuple((doc_id, text, "") for doc_id, text, _ in ROWS)
    source = write(tmp_path / "questions.jsonl", (*plain, (["a", "b"], "Both?", "")))
    assert [each.text for each in read_earlier(source)] == ["One?", "Two?", "Three?"]
    assert not write_asked(source, tmp_path / "asked.jsonl")
    assert not (tmp_path / "asked.jsonl").exists()
    with pytest.raises(KvError, match="names one document"):
        read_earlier(write(tmp_path / "none.jsonl", ROWS[3:]))


def test_the_corpus_has_the_earlier_ones_whatever_is_asked(tmp_path: Path) -> None:
    corpus, asked = tmp_path / "corpus", tmp_path / "other.jsonl"
    corpus.mkdir()
    for name in "ab":
        (corpus / f"{name}.txt").write_text(f"A text about {name}.")
    write(asked, ROWS[:1])
    assert earlier_questions(corpus, asked) == asked
    write(corpus / "questions.jsonl", ROWS[:3])
    assert earlier_questions(corpus, asked) == corpus == earlier_questions(corpus, None)
