"""Questions with the documents that answer them, from one file or from two."""

from dataclasses import replace
from pathlib import Path

from rag_store.documents import Query
from rag_store.errors import CorpusError
from rag_store.readers.beir import is_beir
from rag_store.readers.corpus import read_queries
from rag_store.readers.place import Place, place_of
from rag_store.readers.trec import read_qrels


def read_judged(source: Path, split: str = "", qrels: Path | None = None) -> tuple[Query, ...]:
    """The queries at `source`, of which at least one has a document.

    With `qrels`, a file of judgements, those that it judges, with the documents that it calls
    relevant; of a BEIR folder then all queries may be judged. Raises CorpusError.
    """
    queries = read_queries(source, split) if qrels is None else _joined(source, split, qrels)
    if not any(query.doc_ids for query in queries):
        raise CorpusError(
            f"no question of {source} has a document: give judgements with --qrels, or each"
            " question its doc_id"
        )
    return queries


def _joined(source: Path, split: str, qrels: Path) -> tuple[Query, ...]:
    gold = read_qrels(qrels)
    beir = place_of(source) is Place.FOLDER and is_beir(source)
    asked = read_queries(source / "queries.jsonl" if beir else source, split)
    judged = [each for each in asked if each.query_id in gold]
    if not judged:
        raise CorpusError(f"{qrels} judges no question of {source}: give the one made for it")
    return tuple(replace(each, doc_ids=gold[each.query_id]) for each in judged)
