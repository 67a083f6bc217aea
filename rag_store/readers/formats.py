"""The formats of a corpus, of questions and of judgements.

Of our own: a folder of .txt and .md files, JSONL, and questions in a table. Of others: BEIR's
folders, SQuAD's JSON, and relevance judgements as TREC has them.
"""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from rag_store.documents import Document, Query, clean, distinct
from rag_store.errors import CorpusError
from rag_store.readers.files import (
    JsonRow,
    Place,
    check_id,
    check_text,
    check_title,
    file_at,
    listing,
    place_of,
    read_lines,
    read_rows,
    read_text,
)

TEXT_SUFFIXES = (".md", ".txt")


def folder_documents(folder: Path) -> Iterator[tuple[str, Document]]:
    """Each text, by name: id is the file's stem, title its first heading. Raises CorpusError."""
    for path in listing(folder):
        if path.suffix.lower() not in TEXT_SUFFIXES or path.name.startswith("."):
            continue
        doc_id = check_id(file_at(path).stem, f"{folder}: a file's name")
        text = check_text(clean(read_text(path)), str(path))
        if not text:
            raise CorpusError(f"{path} is empty: fill it or remove it")
        headings = (line[2:].strip() for line in text.split("\n") if line.startswith("# "))
        title = check_title(next(headings, "") or doc_id, str(path))
        yield str(path), Document(doc_id, title, text)


def jsonl_documents(path: Path) -> Iterator[tuple[str, Document]]:
    """Lines of doc_id (or _id), title, text and, if wanted, questions that the text answers.

    Of BEIR's lines, which have _id, those with neither title nor text are skipped. Raises
    CorpusError.
    """
    for row in read_rows(path):
        doc_id = row.identifier("doc_id", "_id")
        title = " ".join(row.text("title", may_be_empty=True).split())
        questions = distinct(row.texts("questions"))
        # The title where a line of BEIR has no more: its corpora hold such, and nobody mends them.
        is_beir = "doc_id" not in row.fields and "text" in row.fields
        if text := check_text(row.text("text", may_be_empty=is_beir) or title, row.at):
            yield row.at, Document(doc_id, title or doc_id, text, questions)


def jsonl_queries(path: Path) -> Iterator[tuple[str, Query]]:
    """Lines of qid (or _id), question (or text), doc_id, kind, split. Raises CorpusError."""
    for row in read_rows(path):
        query_id, text = row.identifier("qid", "_id"), row.text("question", "text")
        kind, split = (row.text(name, may_be_empty=True) for name in ("kind", "split"))
        yield row.at, Query(query_id, text, row.identifiers("doc_id", "doc_ids"), kind, split)


def tsv_queries(path: Path) -> Iterator[tuple[str, Query]]:
    """Lines of an id, a tab and the question; blank lines are skipped. Raises CorpusError."""
    for at, line in read_lines(path):
        query_id, _, question = line.partition("\t")
        text = " ".join(clean(question).split())
        if not text:
            raise CorpusError(f"{at}: no question: write its id, a tab and the question")
        yield at, Query(check_id(query_id.strip(), f"{at}: the first column"), text)


def has_corpus(folder: Path) -> bool:
    """Whether the folder's documents are BEIR's. Raises CorpusError."""
    return place_of(folder / "corpus.jsonl") is Place.FILE


def is_beir(folder: Path) -> bool:
    """Whether its questions are BEIR's too. Raises CorpusError."""
    return has_corpus(folder) and place_of(folder / "queries.jsonl") is Place.FILE


def beir_queries(folder: Path, split: str) -> Iterator[tuple[str, Query]]:
    """The queries that the split judges, with their relevant documents. Raises CorpusError."""
    path = folder / "qrels" / f"{split}.tsv"
    if place_of(path) is not Place.FILE:
        raise CorpusError(f"{path} does not exist: BEIR keeps its judgements there")
    gold = read_qrels(path)
    for at, query in jsonl_queries(folder / "queries.jsonl"):
        if query.query_id in gold:
            yield at, replace(query, doc_ids=gold[query.query_id], split=split)


def squad_documents(path: Path) -> Iterator[tuple[str, Document]]:
    """The paragraphs, with ids `<title>-<number>`. Raises CorpusError."""
    for paragraph, title, doc_id in _paragraphs(path):
        text = check_text(paragraph.text("context"), paragraph.at)
        yield paragraph.at, Document(doc_id, title, text)


def squad_queries(path: Path) -> Iterator[tuple[str, Query]]:
    """The questions with their paragraphs, or none where impossible. Raises CorpusError."""
    for paragraph, _, doc_id in _paragraphs(path):
        for question in _children(paragraph, "qas"):
            impossible = question.fields.get("is_impossible") is True
            query_id, text = question.identifier("id"), question.text("question")
            yield question.at, Query(query_id, text, () if impossible else (doc_id,))


def _paragraphs(path: Path) -> Iterator[tuple[JsonRow, str, str]]:
    try:
        value = json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise CorpusError(f"{path}: not JSON: {error}") from error
    if not isinstance(value, dict):
        raise CorpusError(f"{path}: not a JSON object: SQuAD files hold one with the field 'data'")
    for article in _children(JsonRow(f"{path}:", value), "data"):
        title = " ".join(article.text("title").split())
        for number, paragraph in enumerate(_children(article, "paragraphs")):
            doc_id = f"{title.replace(' ', '_')}-{number}"
            yield paragraph, title, check_id(doc_id, f"{article.at}: field 'title'")


def _children(row: JsonRow, name: str) -> Iterator[JsonRow]:
    values = row.fields.get(name)
    if not isinstance(values, list):
        raise CorpusError(f"{row.at} field {name!r} is no list: SQuAD files hold one")
    for number, value in enumerate(values):
        at = f"{row.at} {name}[{number}]"
        if not isinstance(value, dict):
            raise CorpusError(f"{at} is no object: SQuAD files hold objects there")
        yield JsonRow(at, value)


def read_qrels(path: Path) -> dict[str, tuple[str, ...]]:
    """The relevant documents of each query, in the file's order.

    Lines are `query iteration document relevance` or `query document relevance`, split at tabs,
    else at whitespace; four words of which the iteration is 0 or Q0 at both. Only a relevance above
    0 counts. Raises CorpusError.
    """
    found: dict[str, dict[str, None]] = {}
    for at, line in read_lines(path):
        fields = _columns(line)
        if fields[0] == "query-id":
            continue
        if len(fields) not in (3, 4):
            raise CorpusError(
                f"{at}: {len(fields)} fields: write query, document, relevance,"
                " or query, iteration, document, relevance"
            )
        doc_id, gold = fields[-2], found.setdefault(fields[0], {})
        try:
            gold |= {doc_id: None} if int(fields[-1]) > 0 else {}
        except ValueError as error:
            told = f"field 'relevance' is {fields[-1]!a}: give a whole number"
            raise CorpusError(f"{at}: {told}") from error
    if not found:
        raise CorpusError(f"{path} holds no judgement: give lines of query, document, relevance")
    return {query_id: tuple(gold) for query_id, gold in found.items()}


def _columns(text: str) -> list[str]:
    """Of TREC's lines the words, of BEIR's those between tabs: ids may hold spaces."""
    words = text.split()
    if len(words) == 4 and words[1] in ("0", "Q0"):
        return words
    columns = [each.strip() for each in text.strip().split("\t")]
    return columns if len(columns) in (3, 4) and all(columns) else words
