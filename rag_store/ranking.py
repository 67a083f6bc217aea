"""From a query's vector and words to documents in order, best first.

First every chunk is compared by cosine and by BM25, and a document counts as its best chunk. The
leading documents of either list are the candidates. Their best chunks are then compared word by
word: the cosine of each query word's state with the nearest word of the chunk, averaged (Khattab
and Zaharia's late interaction, SIGIR 2020, with an encoder that was not trained for it).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from rag_store.embedders import Embedding, States, Vectors
from rag_store.embedders.protocol import late_interaction
from rag_store.fusion import fuse
from rag_store.snapshot import Snapshot

Scores = npt.NDArray[np.float32]
Indices = npt.NDArray[np.int64]
Nearest = Callable[[Vectors, int], tuple[Sequence[str], Scores]]

CANDIDATES_EACH = 16
ROWS_EACH = 2
NEAREST_ROWS = 400
# By top-1 on the development splits of two corpora; see docs/rag.md.
WEIGHTS_WITH_STATES = (0.7, 0.3, 1.0)
WEIGHTS = (1.0, 1.0)


@dataclass(frozen=True, slots=True)
class RowScores:
    """Cosine and BM25 of every chunk, shape [rows]; the cosine is -1 where it was not needed."""

    cosines: Scores
    bm25: Scores


@dataclass(frozen=True, slots=True)
class Ranking:
    """The candidates, best first; all arrays have the shape [candidates].

    `documents` are indices of the snapshot's entries, `rows` each one's best chunk, and `words`
    has for each candidate its best cosine with each query word, shape [candidates, query words].
    """

    documents: Indices
    rows: Indices
    scores: Scores
    cosines: Scores
    bm25: Scores
    words: Scores

    @property
    def late(self) -> Scores:
        """The mean over the query's words; zero where there are no states."""
        if self.words.shape[1] == 0:
            return np.zeros(len(self.words), np.float32)
        means: Scores = self.words.mean(axis=1, dtype=np.float32)
        return means


def score_rows(
    snapshot: Snapshot, query: Embedding, words: Sequence[str], nearest: Nearest | None
) -> RowScores:
    """Compare every chunk with the query; with `nearest`, only those it names by cosine."""
    bm25 = snapshot.chunks.scores(words)
    if nearest is None:
        return RowScores(snapshot.vectors @ query.vector, bm25)
    cosines = np.full(len(snapshot.rows), -1, np.float32)
    for row_id, cosine in zip(*nearest(query.vector, NEAREST_ROWS), strict=True):
        # A row that was added after the snapshot was taken is not in it.
        if row_id in snapshot.row_of_id:
            cosines[snapshot.row_of_id[row_id]] = cosine
    return RowScores(cosines, bm25)


def rank(
    snapshot: Snapshot, query: Embedding, found: RowScores, retriever: str, fusion: str
) -> Ranking:
    """The candidates in order. `retriever` is hybrid, dense or bm25, `fusion` as in `fuse`."""
    documents = _candidates(snapshot, found, retriever)
    rows, owners = _rows_of(snapshot, documents)
    cosines, bm25 = snapshot.vectors[rows] @ query.vector, found.bm25[rows]
    starts = np.searchsorted(owners, np.arange(len(documents)))
    by_row = {"dense": cosines, "bm25": bm25}
    leading = by_row.get(retriever, fuse("zscore", [cosines, bm25], [1, 1]))
    words = _words(snapshot, query, rows, starts, leading)
    parts = _best(cosines, starts), _best(bm25, starts)
    scores = _fused(parts, words, retriever, fusion)
    order = np.argsort(-scores, kind="stable")
    best_rows = rows[_argbest(leading, starts)]
    return Ranking(
        documents[order],
        best_rows[order],
        scores[order],
        parts[0][order],
        parts[1][order],
        words[order],
    )


def _candidates(snapshot: Snapshot, found: RowScores, retriever: str) -> Indices:
    chosen: set[int] = set()
    if retriever != "bm25":
        chosen |= _leading(snapshot.best_by_document(found.cosines), above=-1)
    if retriever != "dense":
        chosen |= _leading(snapshot.best_by_document(found.bm25), above=0)
    return np.array(sorted(chosen), np.int64)


def _leading(scores: Scores, above: float) -> set[int]:
    count = min(CANDIDATES_EACH, len(scores))
    top = np.argpartition(-scores, count - 1)[:count] if count else np.zeros(0, np.int64)
    return {int(at) for at in top if scores[at] > above}


def _rows_of(snapshot: Snapshot, documents: Indices) -> tuple[Indices, Indices]:
    """The rows of the documents, and for each row the position of its document."""
    spans = [np.arange(snapshot.first_rows[at], snapshot.first_rows[at + 1]) for at in documents]
    owners = np.repeat(np.arange(len(documents)), [len(span) for span in spans])
    return (np.concatenate(spans) if spans else np.zeros(0, np.int64)), owners


def _words(
    snapshot: Snapshot, query: Embedding, rows: Indices, starts: Indices, scores: Scores
) -> Scores:
    """For each document its cosine with each query word, in the better of its best chunks."""
    if not snapshot.states or len(starts) == 0:
        return np.zeros((len(starts), 0), np.float32)
    bounds = [*starts.tolist(), len(rows)]
    chosen = [
        low + np.argsort(-scores[low:high], kind="stable")[:ROWS_EACH]
        for low, high in pairwise(bounds)
    ]
    states = [snapshot.states[rows[at]] for part in chosen for at in part]
    by_row = _best_words(query.states, states)
    ends = np.cumsum([len(part) for part in chosen])
    return np.stack([_better(part) for part in np.split(by_row, ends[:-1])])


def _best_words(query: States, states: Sequence[States]) -> Scores:
    """The cosine of each query word with the nearest word of each chunk, [chunks, words]."""
    # One chunk at a time: its floats stay in the processor's cache, all chunks' would not.
    return np.stack([late_interaction(query, each).max(axis=1) for each in states])


def _better(rows: Scores) -> Scores:
    best: Scores = rows[np.argmax(rows.mean(axis=1))]
    return best


def _fused(parts: tuple[Scores, Scores], words: Scores, retriever: str, fusion: str) -> Scores:
    if retriever != "hybrid":
        return parts[1] if retriever == "bm25" else parts[0]
    if words.shape[1] == 0:
        return fuse(fusion, parts, WEIGHTS)
    return fuse(fusion, [*parts, words.mean(axis=1, dtype=np.float32)], WEIGHTS_WITH_STATES)


def _best(values: Scores, starts: Indices) -> Scores:
    return np.maximum.reduceat(values, starts) if len(starts) else values[:0]


def _argbest(values: Scores, starts: Indices) -> Indices:
    bounds = [*starts.tolist(), len(values)]
    return np.array(
        [low + int(np.argmax(values[low:high])) for low, high in pairwise(bounds)],
        np.int64,
    )
