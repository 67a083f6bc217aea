"""Formats of others: BEIR's folders, SQuAD's JSON, and relevance judgements as TREC has them."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from rag_store.documents import Document, Query
from rag_store.errors import CorpusError
from rag_store.readers.files import JsonRow, Place, check_id, check_text, place_of, read_text
from rag_store.readers.plain import jsonl_queries


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
        yield (
            paragraph.at,
            Document(doc_id, title, check_text(paragraph.text("context"), paragraph.at)),
        )


def squad_queries(path: Path) -> Iterator[tuple[str, Query]]:
    """The questions, each with its paragraph, or none where it is impossible.

    Raises CorpusError.
    """
    for paragraph, _, doc_id in _paragraphs(path):
        for question in _children(paragraph, "qas"):
            impossible = question.fields.get("is_impossible") is True
            query_id, text = question.identifier("id"), question.text("question")
            yield question.at, Query(query_id, text, () if impossible else (doc_id,))


def _paragraphs(path: Path) -> Iterator[tuple[JsonRow, str, str]]:
    for article in _children(_load(path), "data"):
        title = " ".join(article.text("title").split())
        for number, paragraph in enumerate(_children(article, "paragraphs")):
            doc_id = f"{title.replace(' ', '_')}-{number}"
            yield paragraph, title, check_id(doc_id, f"{article.at}: field 'title'")


def _load(path: Path) -> JsonRow:
    try:
        value = json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise CorpusError(f"{path}: not JSON: {error}") from error
    if not isinstance(value, dict):
        raise CorpusError(f"{path}: not a JSON object: SQuAD files hold one with the field 'data'")
    return JsonRow(f"{path}:", value)


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

    Lines are `query iteration document relevance` or `query document relevance`, split at
    whitespace; only a relevance above 0 counts. Raises CorpusError.
    """
    found: dict[str, list[str]] = {}
    for query_id, doc_id, relevance in _judgements(path):
        gold = found.setdefault(query_id, [])
        if relevance > 0 and doc_id not in gold:
            gold.append(doc_id)
    if not found:
        raise CorpusError(f"{path} holds no judgement: give lines of query, document, relevance")
    return {query_id: tuple(gold) for query_id, gold in found.items()}


def _judgements(path: Path) -> Iterator[tuple[str, str, int]]:
    for line, text in enumerate(read_text(path).split("\n"), start=1):
        fields = text.split()
        if not fields or fields[0] == "query-id":
            continue
        if len(fields) not in (3, 4):
            raise CorpusError(
                f"{path}:{line}: {len(fields)} fields: write query, document, relevance,"
                " or query, iteration, document, relevance"
            )
        yield fields[0], fields[-2], _relevance(fields[-1], f"{path}:{line}")


def _relevance(text: str, at: str) -> int:
    try:
        return int(text)
    except ValueError as error:
        raise CorpusError(f"{at}: field 'relevance' is {text!a}: give a whole number") from error
