"""Earlier questions whose document is known."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kv_reading.errors import KvError

if TYPE_CHECKING:
    from rag_store.documents import Query

DEV, TEST = "dev", "test"


@dataclass(frozen=True, slots=True)
class Earlier:
    """A question and the one document it is about."""

    doc_id: str
    text: str


def read_earlier(source: Path, split: str = "") -> list[Earlier]:
    """The questions at `source`, a JSONL file of qid, question, doc_id or a folder of
    `questions*.jsonl`, that are about one document.

    Those of `split`; without it those of the split `dev`, or all where none is of it. Raises
    KvError.
    """
    queries = _read(source, split)
    chosen = [query for query in queries if query.split == DEV] or queries
    found = [Earlier(each.doc_ids[0], each.text) for each in chosen if len(each.doc_ids) == 1]
    if not found:
        raise KvError(f"no question of {source} names one document: give it a doc_id")
    return found


def write_asked(source: Path, path: Path) -> bool:
    """Write the questions of the split `test`, which no centroid of `dev` knows, to a JSONL file;
    False where there are none. Raises KvError."""
    chosen = [each for each in _read(source) if each.split == TEST and len(each.doc_ids) == 1]
    rows = [
        {"qid": each.query_id, "question": each.text, "doc_id": each.doc_ids[0]} for each in chosen
    ]
    lines = (json.dumps(row, ensure_ascii=False) for row in rows)
    if rows:
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return bool(rows)


def _read(source: Path, split: str = "") -> "tuple[Query, ...]":
    from rag_store.errors import CorpusError
    from rag_store.readers.corpus import read_queries

    try:
        return read_queries(source, split)
    except CorpusError as error:
        raise KvError(f"no earlier questions: {error}") from error
