"""Documents and questions in any of the formats, which is told from what lies at the path."""

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from rag_store.documents import Document, Query
from rag_store.errors import CorpusError
from rag_store.readers import formats
from rag_store.readers.formats import Place, file_at, listing, place_of, read_text

Item = TypeVar("Item", Document, Query)
_QUESTIONS = ("questions*.jsonl", "unanswerable*.jsonl")
_NAMED = 10


def read_documents(source: Path) -> tuple[Document, ...]:
    """The documents at `source`, in a fixed order and with ids of their own.

    A folder of .txt and .md files, a BEIR folder, a JSONL file of doc_id, title and text, or
    SQuAD-style JSON. Raises CorpusError.
    """
    if not _is_folder(source):
        read = formats.squad_documents if _is_squad(source) else formats.jsonl_documents
        rows = read(source)
    elif formats.has_corpus(source):
        rows = formats.jsonl_documents(source / "corpus.jsonl")
    else:
        rows = formats.folder_documents(source)
    return _unique(rows, lambda each: each.doc_id, "doc_id", f"{source} holds no document")


def unread_note(source: Path) -> str:
    """What in a folder of texts is not read, in a sentence, or "". Raises CorpusError."""
    if not _is_folder(source) or formats.has_corpus(source):
        return ""
    names = [
        f"{path.name}/" if path.is_dir() else path.name
        for path in listing(source)
        if not path.name.startswith(".")
        and path.suffix.lower() not in formats.TEXT_SUFFIXES
        and not any(map(path.match, _QUESTIONS))
    ]
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    listed = f"{', '.join(names[:_NAMED])}{more}"
    return f"passed over in {source}, as only .md and .txt are read: {listed}" if names else ""


def read_queries(source: Path, split: str = "") -> tuple[Query, ...]:
    """The queries at `source`, in a fixed order and with ids of their own.

    A JSONL file of qid, question and doc_id (one, a list, or null for none), a folder of
    `questions*.jsonl`, a BEIR folder, SQuAD-style JSON, or a table of ids and questions, `.tsv`.
    With `split` only those of that split; without it all, but of a BEIR folder those of its test
    split. Raises CorpusError.
    """
    rows = each_query(source, split or "test")
    queries = _unique(rows, lambda each: each.query_id, "qid", f"{source} holds no question")
    chosen = tuple(query for query in queries if not split or query.split == split)
    if not chosen:
        there = ", ".join(sorted({query.split for query in queries} - {""}))
        known = f"its splits are {there}" if there else "its rows have no field 'split'"
        raise CorpusError(f"{source} has no question of the split {split!a}: {known}")
    return chosen


def each_query(source: Path, beir_split: str = "test") -> Iterator[tuple[str, Query]]:
    """Where each query of `read_queries` stands, and the query. Raises CorpusError."""
    if not _is_folder(source):
        squad = formats.squad_queries if _is_squad(source) else formats.jsonl_queries
        yield from (formats.tsv_queries if source.suffix == ".tsv" else squad)(source)
    elif formats.is_beir(source):
        yield from formats.beir_queries(source, beir_split)
    else:
        for path in listing(source):
            if path.match("questions*.jsonl"):
                yield from formats.jsonl_queries(file_at(path))


def _is_squad(source: Path) -> bool:
    """A .json file, unless its first line is a whole object of ours."""
    if source.suffix != ".json":
        return False
    first = read_text(source).lstrip().partition("\n")[0]
    try:
        fields = json.loads(first)
    except (ValueError, RecursionError):
        return True
    return not isinstance(fields, dict) or not fields.keys() & {"doc_id", "_id", "qid"}


def _is_folder(source: Path) -> bool:
    place = place_of(source)
    if place is Place.NOTHING:
        raise CorpusError(f"{source} does not exist: name a folder or a file")
    return place is Place.FOLDER


def _unique(
    rows: Iterable[tuple[str, Item]], key: Callable[[Item], str], field: str, if_none: str
) -> tuple[Item, ...]:
    seen: dict[str, Item] = {}
    for at, item in rows:
        if key(item) in seen:
            raise CorpusError(f"{at}: {field} {key(item)!r} stands twice: rename one of them")
        seen[key(item)] = item
    if not seen:
        raise CorpusError(if_none)
    return tuple(seen.values())


def read_judged(source: Path, split: str = "", qrels: Path | None = None) -> tuple[Query, ...]:
    """The queries at `source`, of which at least one has a document.

    With `qrels`, a file of judgements, those that it judges, with the documents that it calls
    relevant; of a BEIR folder then all queries may be judged. Raises CorpusError.
    """
    if qrels is None:
        queries = read_queries(source, split)
    else:
        gold = formats.read_qrels(qrels)
        is_beir = place_of(source) is Place.FOLDER and formats.is_beir(source)
        asked = read_queries(source / "queries.jsonl" if is_beir else source, split)
        judged = [each for each in asked if each.query_id in gold]
        if not judged:
            raise CorpusError(f"{qrels} judges no question of {source}: give the one made for it")
        queries = tuple(replace(each, doc_ids=gold[each.query_id]) for each in judged)
    if not any(query.doc_ids for query in queries):
        raise CorpusError(
            f"no question of {source} has a document: give judgements with --qrels, or each"
            " question its doc_id"
        )
    return queries
