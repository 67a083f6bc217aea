"""Labels of questions by their KV, which a forward pass of the served model gives."""

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from tokenizers import Tokenizer

from kv_reading import KvError
from kv_reading.features import POOLS, Scale, pooled
from kv_reading.kv import Floats, ReferenceModel

if TYPE_CHECKING:
    from rag_store.documents import Query


DEV, TEST = "dev", "test"
FEATURES = (
    "keys and values of all layers and heads, mean over the question's tokens, standardised;"
    " nearest centroid"
)
CANDIDATES = 5


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
    from rag_store.readers import read_queries

    try:
        return read_queries(source, split)
    except CorpusError as error:
        raise KvError(f"no earlier questions: {error}") from error


@dataclass(frozen=True, slots=True)
class Near:
    """A document, and how far its centroid lies: the root mean square over all columns."""

    doc_id: str
    distance: float


class Centroids:
    """The mean of each document's earlier requests, each column standardised over all of them."""

    def __init__(self, rows: Floats, doc_ids: Sequence[str]) -> None:
        """`rows` are [requests, columns]. Raises KvError for fewer than two documents."""
        names, self._at = np.unique(doc_ids, return_inverse=True)
        if len(names) < 2:
            raise KvError(
                f"earlier questions are about {len(names)} document(s): a label needs two or more"
            )
        self.doc_ids = tuple(map(str, names))
        self._scale = Scale.of(rows)
        self._rows = self._scale.standardised(rows)
        self._counts = np.bincount(self._at)
        self._sums = np.zeros((len(names), rows.shape[1]))
        np.add.at(self._sums, self._at, self._rows)

    def ranked(self, row: Floats, without: Sequence[int] = ()) -> list[Near]:
        """All documents for a request's `row`, [columns], the nearest first.

        Earlier requests `without` count in no centroid; a document that has no other is left out.
        """
        sums, counts = self._sums, self._counts
        if without:
            sums, counts, left_out = sums.copy(), counts.copy(), list(without)
            np.subtract.at(sums, self._at[left_out], self._rows[left_out])
            np.subtract.at(counts, self._at[left_out], 1)
        kept = np.flatnonzero(counts)
        centroids = sums[kept] / counts[kept, None]
        apart = centroids - self._scale.standardised(row)
        distances = np.sqrt(np.mean(apart**2, axis=1))
        order = np.argsort(distances, kind="stable")
        return [Near(self.doc_ids[kept[at]], float(distances[at])) for at in order]


@dataclass(frozen=True, slots=True)
class KvLabel:
    """The nearest documents, best first, at most five: none where no earlier question is left. The
    forward pass took `compute_ms`, the search `search_ms`."""

    candidates: tuple[Near, ...]
    compute_ms: float
    search_ms: float


class KvLabeller:
    """Blocks while it computes."""

    def __init__(self, model: Path, earlier: Sequence[Earlier]) -> None:
        """Raises KvError for a model that cannot be loaded, and as `Centroids`."""
        self._tokenizer = _tokenizer(model)
        self._model = ReferenceModel(model)
        rows = np.stack([self._row(each.text) for each in earlier])
        self._centroids = Centroids(rows, [each.doc_id for each in earlier])
        self._texts = [each.text for each in earlier]

    @property
    def questions(self) -> int:
        """How many earlier ones are known."""
        return len(self._texts)

    @property
    def doc_ids(self) -> tuple[str, ...]:
        """What a label can be."""
        return self._centroids.doc_ids

    def label(self, question: str) -> KvLabel:
        """By the KV of the question alone. An earlier question with which it begins takes no part:
        none is labelled by itself, nor where it returns with another ending."""
        since_s = time.perf_counter()
        row = self._row(question)
        computed_s = time.perf_counter()
        same = [at for at, text in enumerate(self._texts) if question.startswith(text)]
        near = self._centroids.ranked(row, same)
        took_ms = (time.perf_counter() - computed_s) * 1000
        return KvLabel(tuple(near[:CANDIDATES]), (computed_s - since_s) * 1000, took_ms)

    def _row(self, text: str) -> Floats:
        ids = self._tokenizer.encode(text, add_special_tokens=False).ids
        row: Floats = pooled(self._model.kv(ids))[POOLS.index("mean")].reshape(-1)
        return row


def _tokenizer(model: Path) -> Tokenizer:
    path = model / "tokenizer.json"
    if not path.is_file():
        raise KvError(f"{model} has no tokenizer.json: name the folder of the model that is served")
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # tokenizers raises nothing narrower
        raise KvError(f"cannot read {path}: {error}") from error
