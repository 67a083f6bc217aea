"""A folder of .txt and .md files, and JSONL files of documents and questions."""

from collections.abc import Iterator
from pathlib import Path

from rag_store.documents import Document, Query, clean, distinct
from rag_store.errors import CorpusError
from rag_store.readers.place import file_at, listing
from rag_store.readers.rows import Row, check_id, check_title, read_rows, read_text

TEXT_SUFFIXES = (".md", ".txt")


def folder_documents(folder: Path) -> Iterator[tuple[str, Document]]:
    """Where each text stands, and the document: id is the file's stem, title its first heading.

    Sorted by name; hidden files are skipped, and what is no regular file is refused. Raises
    CorpusError.
    """
    for path in listing(folder):
        if path.suffix.lower() in TEXT_SUFFIXES and not path.name.startswith("."):
            yield str(path), _text_document(file_at(path))


def _text_document(path: Path) -> Document:
    text = clean(read_text(path))
    if not text:
        raise CorpusError(f"{path} is empty: fill it or remove it")
    headings = (line[2:].strip() for line in text.split("\n") if line.startswith("# "))
    title = check_title(next(headings, "") or path.stem, str(path))
    return Document(check_id(path.stem, str(path)), title, text)


def jsonl_documents(path: Path) -> Iterator[tuple[str, Document]]:
    """Lines of doc_id (or _id), title, text and, if wanted, questions that the text answers.

    Of BEIR's lines, which have _id, those with neither title nor text are skipped. Raises
    CorpusError.
    """
    for row in read_rows(path):
        doc_id = row.identifier("doc_id", "_id")
        title = " ".join(row.text("title", may_be_empty=True).split())
        questions = distinct(row.texts("questions"))
        if text := _text(row, title):
            yield row.at, Document(doc_id, title or doc_id, text, questions)


def _text(row: Row, title: str) -> str:
    """The title where a line of BEIR has no more: its corpora hold such, and nobody mends them."""
    if "doc_id" in row.fields or "text" not in row.fields:
        return row.text("text")
    return row.text("text", may_be_empty=True) or title


def jsonl_queries(path: Path) -> Iterator[tuple[str, Query]]:
    """Lines of qid (or _id), question (or text) and doc_id: one id, a list, or null for none.

    `kind` and `split` may be given too. Raises CorpusError.
    """
    for row in read_rows(path):
        query_id, text = row.identifier("qid", "_id"), row.text("question", "text")
        kind, split = (row.text(name, may_be_empty=True) for name in ("kind", "split"))
        yield row.at, Query(query_id, text, row.identifiers("doc_id", "doc_ids"), kind, split)
