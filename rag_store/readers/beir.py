"""A BEIR folder: corpus.jsonl, queries.jsonl and qrels/<split>.tsv."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from rag_store.documents import Query
from rag_store.errors import CorpusError
from rag_store.readers.folder import jsonl_queries
from rag_store.readers.place import Place, place_of
from rag_store.readers.trec import read_qrels


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
