"""Formats of our own: a folder of .txt and .md files, JSONL, and questions in a table."""

from collections.abc import Iterator
from pathlib import Path

from rag_store.documents import Document, Query, clean, distinct
from rag_store.errors import CorpusError
from rag_store.readers.files import (
    JsonRow,
    check_id,
    check_text,
    check_title,
    file_at,
    listing,
    read_rows,
    read_text,
)

TEXT_SUFFIXES = (".md", ".txt")
_QUESTIONS = ("questions*.jsonl", "unanswerable*.jsonl")


def passed_over(folder: Path) -> tuple[str, ...]:
    """What in a folder of texts is read neither as a document nor as questions, folders with `/`.

    Sorted; hidden names are left out. Raises CorpusError.
    """
    return tuple(
        f"{path.name}/" if path.is_dir() else path.name
        for path in listing(folder)
        if not path.name.startswith(".")
        and path.suffix.lower() not in TEXT_SUFFIXES
        and not any(map(path.match, _QUESTIONS))
    )


def folder_documents(folder: Path) -> Iterator[tuple[str, Document]]:
    """Where each text stands, and the document: id is the file's stem, title its first heading.

    Sorted by name; hidden files are skipped, and what is no regular file is refused. Raises
    CorpusError.
    """
    for path in listing(folder):
        if path.suffix.lower() in TEXT_SUFFIXES and not path.name.startswith("."):
            yield str(path), _text_document(file_at(path))


def _text_document(path: Path) -> Document:
    doc_id = check_id(path.stem, f"{path.parent}: a file's name")
    text = check_text(clean(read_text(path)), str(path))
    if not text:
        raise CorpusError(f"{path} is empty: fill it or remove it")
    headings = (line[2:].strip() for line in text.split("\n") if line.startswith("# "))
    return Document(doc_id, check_title(next(headings, "") or doc_id, str(path)), text)


def jsonl_documents(path: Path) -> Iterator[tuple[str, Document]]:
    """Lines of doc_id (or _id), title, text and, if wanted, questions that the text answers.

    Of BEIR's lines, which have _id, those with neither title nor text are skipped. Raises
    CorpusError.
    """
    for row in read_rows(path):
        doc_id = row.identifier("doc_id", "_id")
        title = " ".join(row.text("title", may_be_empty=True).split())
        questions = distinct(row.texts("questions"))
        if text := check_text(_text(row, title), row.at):
            yield row.at, Document(doc_id, title or doc_id, text, questions)


def _text(row: JsonRow, title: str) -> str:
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


def tsv_queries(path: Path) -> Iterator[tuple[str, Query]]:
    """Lines of an id, a tab and the question; blank lines are skipped. Raises CorpusError."""
    for number, line in enumerate(read_text(path).split("\n"), start=1):
        at = f"{path}:{number}"
        query_id, _, question = line.partition("\t")
        text = " ".join(clean(question).split())
        if text:
            yield at, Query(check_id(query_id.strip(), f"{at}: the first column"), text)
        elif line.strip():
            raise CorpusError(f"{at}: no question: write its id, a tab and the question")
