"""SQuAD-style JSON: articles of paragraphs, each with its questions.

A paragraph is a document. A question with `is_impossible` has no document.
"""

import json
from collections.abc import Iterator
from pathlib import Path

from rag_store.documents import Document, Query
from rag_store.errors import CorpusError
from rag_store.readers.rows import Row, check_id, read_text


def squad_documents(path: Path) -> Iterator[tuple[str, Document]]:
    """The paragraphs, with ids `<title>-<number>`. Raises CorpusError."""
    for paragraph, title, doc_id in _paragraphs(path):
        yield paragraph.at, Document(doc_id, title, paragraph.text("context"))


def squad_queries(path: Path) -> Iterator[tuple[str, Query]]:
    """The questions, each with its paragraph, or none where it is impossible.

    Raises CorpusError.
    """
    for paragraph, _, doc_id in _paragraphs(path):
        for question in _children(paragraph, "qas"):
            impossible = question.fields.get("is_impossible") is True
            query_id, text = question.identifier("id"), question.text("question")
            yield question.at, Query(query_id, text, () if impossible else (doc_id,))


def _paragraphs(path: Path) -> Iterator[tuple[Row, str, str]]:
    for article in _children(_load(path), "data"):
        title = " ".join(article.text("title").split())
        for number, paragraph in enumerate(_children(article, "paragraphs")):
            doc_id = f"{title.replace(' ', '_')}-{number}"
            yield paragraph, title, check_id(doc_id, f"{article.at}: field 'title'")


def _load(path: Path) -> Row:
    try:
        value = json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise CorpusError(f"{path}: not JSON: {error}") from error
    if not isinstance(value, dict):
        raise CorpusError(f"{path}: not a JSON object: SQuAD files hold one with the field 'data'")
    return Row(f"{path}:", value)


def _children(row: Row, name: str) -> Iterator[Row]:
    values = row.fields.get(name)
    if not isinstance(values, list):
        raise CorpusError(f"{row.at} field {name!r} is no list: SQuAD files hold one")
    for number, value in enumerate(values):
        at = f"{row.at} {name}[{number}]"
        if not isinstance(value, dict):
            raise CorpusError(f"{at} is no object: SQuAD files hold objects there")
        yield Row(at, value)
