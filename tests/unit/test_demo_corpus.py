"""The demo corpus: its texts, and questions of which none gives its document away."""

import json
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path

import pytest

import loadgen.workload
from loadgen.workload.corpus import load_corpus
from rag_store.readers import read_documents, read_queries

FOLDER = Path(loadgen.workload.__file__).parent / "demo_corpus"
TEXTS = {path.stem: path.read_bytes() for path in sorted(FOLDER.glob("*.md"))}
KINDS = {"direct": 4, "paraphrased": 2, "deep": 1, "neighbour": 1}
PHRASE_WORDS = 6


def rows_of(paths: Iterable[Path]) -> list[dict[str, str]]:
    lines = (line for path in paths for line in path.read_text(encoding="utf-8").splitlines())
    return [json.loads(line) for line in lines]


QUESTIONS = rows_of(sorted(FOLDER.glob("questions-*.jsonl")))
UNANSWERABLE = rows_of([FOLDER / "unanswerable.jsonl"])
ALL = QUESTIONS + UNANSWERABLE

each_document = pytest.mark.parametrize("doc_id", TEXTS)
each_question = pytest.mark.parametrize("question", ALL, ids=lambda q: q["qid"])


def text_of(doc_id: str) -> str:
    return TEXTS[doc_id].decode("utf-8")


def title_of(doc_id: str) -> str:
    return text_of(doc_id).partition("\n")[0].removeprefix("# ").strip()


def first_sentence_of(doc_id: str) -> str:
    body = text_of(doc_id).partition("\n")[2].split()
    return re.split(r"(?<=[.!?]) ", " ".join(body), maxsplit=1)[0].casefold()


def readings(text: str) -> tuple[list[str], list[str]]:
    """The words of a text with punctuation removed, and with punctuation read as a space."""
    lowered = text.casefold()
    return re.sub(r"[^\w\s]|_", "", lowered).split(), re.sub(r"[\W_]+", " ", lowered).split()


def phrases(words: list[str], length: int) -> set[tuple[str, ...]]:
    return {tuple(words[i : i + length]) for i in range(len(words) - length + 1)}


@cache
def long_phrases(text: str) -> tuple[set[tuple[str, ...]], ...]:
    """The runs of six words, under either reading of punctuation."""
    return tuple(phrases(words, PHRASE_WORDS) for words in readings(text))


def shared_phrases(question: str, document: str) -> set[tuple[str, ...]]:
    """Runs of six words that both texts contain, under either reading of punctuation."""
    pairs = zip(long_phrases(question), long_phrases(document), strict=True)
    return {shared for asked, written in pairs for shared in asked & written}


def names(question: str, name: str) -> bool:
    """Whether a name occurs in the question as whole words, however it is punctuated."""
    pairs = zip(readings(question), readings(name), strict=True)
    return any(tuple(wanted) in phrases(asked, len(wanted)) for asked, wanted in pairs)


def test_both_readers_find_all_documents_and_only_their_questions() -> None:
    corpus, found = load_corpus(), read_queries(FOLDER)
    asked = [each.question_id for some in corpus.questions.values() for each in some]
    assert len(TEXTS) == len(corpus.documents) == len(read_documents(FOLDER)) == 24
    assert sorted(asked) == sorted(query.query_id for query in found)
    assert sorted(asked) == sorted(question["qid"] for question in QUESTIONS)


def test_strangers_are_read_as_having_no_document() -> None:
    strangers = read_queries(FOLDER / "unanswerable.jsonl")
    assert len(strangers) == len(UNANSWERABLE) == 30
    assert not any(query.doc_ids for query in strangers)


@each_document
def test_document_is_800_to_1500_words(doc_id: str) -> None:
    assert 800 <= len(text_of(doc_id).split()) <= 1500


@each_document
def test_document_begins_with_its_only_title(doc_id: str) -> None:
    assert re.match(r"# \S.*\n\n[^\s#]", text_of(doc_id))
    assert len(re.findall(r"^# ", text_of(doc_id), re.MULTILINE)) == 1


@each_document
def test_document_has_paragraphs_to_recombine(doc_id: str) -> None:
    blocks = text_of(doc_id).split("\n\n")
    assert len([block for block in blocks if not block.startswith("#")]) >= 8


@each_document
def test_document_is_clean_utf8(doc_id: str) -> None:
    text = text_of(doc_id)
    assert unicodedata.is_normalized("NFC", text)
    odd = {c for c in text if unicodedata.category(c) in {"Cc", "Cf", "Co", "Cn"}} - {"\n"}
    assert not odd | ({"\N{REPLACEMENT CHARACTER}"} & set(text))


@each_document
def test_document_has_eight_questions_half_of_them_for_tests(doc_id: str) -> None:
    own = [q for q in QUESTIONS if q["doc_id"] == doc_id]
    assert Counter(q["kind"] for q in own) == KINDS
    assert Counter(q["split"] for q in own) == {"dev": 4, "test": 4}


def test_each_split_has_half_of_each_kind() -> None:
    counts = Counter((q["kind"], q["split"]) for q in QUESTIONS)
    each_kind = {kind: len(TEXTS) * number // 2 for kind, number in KINDS.items()}
    assert counts == {(k, split): n for k, n in each_kind.items() for split in ("dev", "test")}


def test_strangers_are_half_near_and_half_for_tests() -> None:
    assert Counter(q["kind"] for q in UNANSWERABLE) == {"unrelated": 15, "near": 15}
    assert Counter(q["split"] for q in UNANSWERABLE) == {"dev": 15, "test": 15}
    counts = Counter((q["kind"], q["split"]) for q in UNANSWERABLE)
    assert min(counts.values()) >= 7


@pytest.mark.parametrize("part", [title_of, first_sentence_of])
def test_no_two_documents_begin_alike(part: Callable[[str], str]) -> None:
    counts = Counter(part(doc_id) for doc_id in TEXTS)
    assert not [text for text, count in counts.items() if count > 1]


@pytest.mark.parametrize("key", ["qid", "question"])
def test_questions_are_unique(key: str) -> None:
    counts = Counter(" ".join(readings(q[key])[1]) for q in ALL)
    assert not [text for text, count in counts.items() if count > 1]


@each_question
def test_question_is_of_a_document_that_exists_or_of_none(question: dict[str, str]) -> None:
    assert set(question) == {"qid", "question", "doc_id", "kind", "split"}
    assert question["doc_id"] is None if question in UNANSWERABLE else question["doc_id"] in TEXTS


@each_question
def test_question_is_10_to_30_printable_words(question: dict[str, str]) -> None:
    assert 10 <= len(question["question"].split()) <= 30
    assert question["question"].isprintable()
    assert question["question"].endswith("?")


@each_question
def test_question_names_no_document(question: dict[str, str]) -> None:
    told = [d for d in TEXTS if names(question["question"], d)]
    told += [d for d in TEXTS if names(question["question"], title_of(d))]
    assert not told


@each_question
def test_question_quotes_no_document(question: dict[str, str]) -> None:
    assert not {d: s for d in TEXTS if (s := shared_phrases(question["question"], text_of(d)))}


def test_a_quoted_phrase_is_seen_through_case_and_punctuation() -> None:
    document = "Caches, once full, evict the least-recently used leaf first."
    assert shared_phrases("Does it evict the Least-Recently used leaf?", document)
    assert shared_phrases("Why evict the least recently used leaf?", document)
    assert not shared_phrases("Is the least recently used leaf dropped?", "the least recently used")


def test_a_name_is_seen_as_words_and_not_inside_words() -> None:
    assert names("How does paged attention look up blocks?", "paged-attention")
    assert names("What is in paged-attention.md?", "paged-attention")
    assert not names("How are engaged attention heads split?", "paged-attention")
