"""Documents and queries from any of the formats, which is told from what lies at the path."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeVar

from rag_store.documents import Document, Query
from rag_store.errors import CorpusError
from rag_store.readers.beir import beir_queries, has_corpus, is_beir
from rag_store.readers.folder import folder_documents, jsonl_documents, jsonl_queries
from rag_store.readers.place import Place, file_at, listing, place_of
from rag_store.readers.squad import squad_documents, squad_queries
from rag_store.readers.tsv import tsv_queries

Item = TypeVar("Item", Document, Query)


def read_documents(source: Path) -> tuple[Document, ...]:
    """The documents at `source`, in a fixed order and with ids of their own.

    A folder of .txt and .md files, a BEIR folder, a JSONL file of doc_id, title and text, or
    SQuAD-style JSON. Raises CorpusError.
    """
    if _is_folder(source):
        beir = has_corpus(source)
        rows = jsonl_documents(source / "corpus.jsonl") if beir else folder_documents(source)
    else:
        rows = squad_documents(source) if source.suffix == ".json" else jsonl_documents(source)
    return _unique(rows, lambda document: document.doc_id, source, "document")


def read_queries(source: Path, split: str = "") -> tuple[Query, ...]:
    """The queries at `source`, in a fixed order and with ids of their own.

    A JSONL file of qid, question and doc_id (one, a list, or null for none), a folder of
    `questions*.jsonl`, a BEIR folder, SQuAD-style JSON, or a table of ids and questions, `.tsv`.
    With `split` only those of that split; without it all, but of a BEIR folder those of its test
    split. Raises CorpusError.
    """
    rows = _queries_of(source, split or "test")
    queries = _unique(rows, lambda query: query.query_id, source, "question")
    return _of_split(queries, split, source) if split else queries


def _of_split(queries: tuple[Query, ...], split: str, source: Path) -> tuple[Query, ...]:
    chosen = tuple(query for query in queries if query.split == split)
    if not chosen:
        there = ", ".join(sorted({query.split for query in queries} - {""}))
        known = f"its splits are {there}" if there else "its rows have no field 'split'"
        raise CorpusError(f"{source} has no question of the split {split!a}: {known}")
    return chosen


def _queries_of(source: Path, beir_split: str) -> Iterator[tuple[str, Query]]:
    if not _is_folder(source):
        readers = {".json": squad_queries, ".tsv": tsv_queries}
        yield from readers.get(source.suffix, jsonl_queries)(source)
    elif is_beir(source):
        yield from beir_queries(source, beir_split)
    else:
        for path in listing(source):
            if path.match("questions*.jsonl"):
                yield from jsonl_queries(file_at(path))


def _is_folder(source: Path) -> bool:
    place = place_of(source)
    if place is Place.NOTHING:
        raise CorpusError(f"{source} does not exist: name a folder or a file")
    return place is Place.FOLDER


def _unique(
    rows: Iterable[tuple[str, Item]], key: Callable[[Item], str], source: Path, noun: str
) -> tuple[Item, ...]:
    seen: dict[str, Item] = {}
    for at, item in rows:
        if key(item) in seen:
            raise CorpusError(f"{at}: id {key(item)!r} stands twice: rename one of them")
        seen[key(item)] = item
    if not seen:
        raise CorpusError(f"{source} holds no {noun}")
    return tuple(seen.values())
