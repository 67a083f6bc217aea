"""The documents in memory, and from a query's vector and words to their order, best first.

Every chunk is compared by cosine and by BM25, and a document counts as its best chunk. The leading
documents of either list are the candidates. Three scores of each are added as they are: the cosine
of the best chunk, how well the query's words are met in those sentences that are nearest to the
query (Khattab and Zaharia's late interaction, SIGIR 2020, with an encoder that was not trained for
it), and half of the share of its highest possible BM25 that the best chunk has. What hardly differs
between the candidates then hardly counts, and the sum can be compared between queries.
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields

import bm25s
import numpy as np
import numpy.typing as npt

from rag_store.embedders.protocol import Embedding, Vectors, late_interaction
from rag_store.settings import CANDIDATES_EACH
from rag_store.state_files import WordStates
from rag_store.store import Entry, Row
from rag_store.terms import pieces, terms

Indices = npt.NDArray[np.int64]
Scores = npt.NDArray[np.float32]
Nearest = Callable[[Vectors], tuple[Sequence[str], Scores]]

BM25_WEIGHT = 0.5
"""Chosen on two collections, an FAQ and mixed texts: more loses the one, less the other."""
_SENTENCES_EACH = 12
_NOT_COMPARED = -1.0
_NO_TERM = ""
"""No text has it."""


class LexicalIndex:
    """An immutable BM25 index (Robertson's formula in Lucene's form, by bm25s) of rows of terms."""

    def __init__(self, rows: Sequence[Sequence[str]], k1: float = 1.5, b: float = 0.75) -> None:
        """About 0.1 ms a row."""
        self._count = len(rows)
        made = bm25s.BM25(method="lucene", k1=k1, b=b, backend="numpy")
        # bm25s cannot index nothing at all: no rows, or rows without a term, such as "What is it?".
        texts = [list(row) for row in rows] if any(rows) else [[_NO_TERM]]
        made.index(texts, show_progress=False)
        self._columns: dict[str, int] = dict(made.vocab_dict)
        self._columns.pop(_NO_TERM, None)
        self._starts = np.asarray(made.scores["indptr"])
        self._rows = np.asarray(made.scores["indices"])
        self._weights = np.asarray(made.scores["data"])

    def scores(self, terms: Sequence[str]) -> Scores:
        """BM25 of each row, shape [rows]; zero for rows without any of the terms."""
        totals = np.zeros(self._count, np.float32)
        for term in terms:
            rows, weights = self.postings(term)
            totals[rows] += weights
        return totals

    def postings(self, term: str) -> tuple[npt.NDArray[np.int32], Scores]:
        """The rows that hold the term, and its BM25 weight in each of them."""
        column = self._columns.get(term)
        if column is None:
            return self._rows[:0], self._weights[:0]
        span = slice(int(self._starts[column]), int(self._starts[column + 1]))
        return self._rows[span], self._weights[span]

    def weight(self, term: str, row: int) -> float:
        """BM25 of the term in the row; 0 where it is not there."""
        rows, weights = self.postings(term)
        return float(weights[rows == row].sum())

    def rarity(self, term: str) -> float:
        """Lucene's inverse document frequency of the term; highest for one that no row holds."""
        return _rarity(len(self.postings(term)[0]), self._count)


def _rarity(held: int, count: int) -> float:
    """Lucene's inverse frequency of a word that `held` of `count` texts hold; positive."""
    return math.log(1 + (count - held + 0.5) / (held + 0.5))


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All documents in the order of their ids, immutable: searches go on while they change.

    A document's rows stand together: those of document d are first_rows[d] to first_rows[d + 1].
    `chunks` is of all rows; `words` counts the sentences and questions that a word is in, of
    `texts` in all, where the embedder gives states.
    """

    entries: tuple[Entry, ...]
    rows: tuple[Row, ...]
    first_rows: Indices
    row_of_id: dict[str, int]
    vectors: Vectors
    chunks: LexicalIndex
    words: Counter[str]
    texts: int

    @classmethod
    def of(cls, entries: Sequence[Entry], dim: int) -> "Snapshot":
        """Index the documents; about a second for 10,000 chunks."""
        ordered = tuple(sorted(entries, key=lambda entry: entry.doc_id))
        rows = tuple(row for entry in ordered for row in entry.rows)
        stated = [entry for entry in ordered if entry.states]
        texts = (set(pieces(text)) for entry in stated for text in entry.state_passages)
        return cls(
            ordered,
            rows,
            np.cumsum([0, *(len(entry.rows) for entry in ordered)]),
            {row.row_id: at for at, row in enumerate(rows)},
            np.concatenate([np.zeros((0, dim), np.float32), *(each.vectors for each in ordered)]),
            LexicalIndex([terms(row.passage) for row in rows]),
            Counter(word for words in texts for word in words),
            sum(entry.state_count for entry in stated),
        )


@dataclass(frozen=True, slots=True)
class RowScores:
    """Of every chunk, [rows]; a cosine of -1 was not needed, and no BM25 can exceed `most`."""

    cosines: Scores
    bm25: Scores
    most: float


@dataclass(frozen=True, slots=True)
class Ranking:
    """The candidates, best first; all arrays have the shape [candidates].

    `documents` are indices of the snapshot's entries, `rows` each one's best chunk. A score is at
    most 1, as are the cosine and `words`, how well the query's words are met; zeros without states.
    """

    documents: Indices
    rows: Indices
    scores: Scores
    cosines: Scores
    bm25: Scores
    words: Scores

    def reordered(self, order: Indices) -> "Ranking":
        """The same candidates in another order, given as their positions."""
        return Ranking(*(getattr(self, each.name)[order] for each in fields(self)))


def score_rows(
    snapshot: Snapshot, query: Embedding, words: Sequence[str], nearest: Nearest | None
) -> RowScores:
    """Compare every chunk with the query; with `nearest`, only those it names by cosine."""
    bm25 = snapshot.chunks.scores(words)
    most = sum(map(snapshot.chunks.rarity, words))
    if nearest is None:
        return RowScores(snapshot.vectors @ query.vector, bm25, most)
    cosines = np.full(len(snapshot.rows), _NOT_COMPARED, np.float32)
    for row_id, cosine in zip(*nearest(query.vector), strict=True):
        # A row that was added after the snapshot was taken is not in it.
        if row_id in snapshot.row_of_id:
            cosines[snapshot.row_of_id[row_id]] = cosine
    return RowScores(cosines, bm25, most)


def rank(snapshot: Snapshot, query: Embedding, found: RowScores, retriever: str) -> Ranking:
    """The candidates in order. `retriever` is hybrid, dense or bm25."""
    documents = _candidates(snapshot, found, retriever)
    rows, owners, starts = _rows_of(snapshot, documents)
    cosines, bm25, most = found.cosines[rows], found.bm25[rows], found.most or 1
    missing = cosines == _NOT_COMPARED
    cosines[missing] = snapshot.vectors[rows[missing]] @ query.vector
    best_first = np.lexsort((-_joined(retriever, cosines, bm25 / most), owners))
    best_cosines, best_bm25 = _best(cosines, starts), _best(bm25, starts)
    words = _words_met(snapshot, query, documents)
    ranking = Ranking(
        documents,
        rows[best_first[starts]],
        _joined(retriever, best_cosines, best_bm25 / most, words),
        best_cosines,
        best_bm25,
        words if words is not None else np.zeros_like(best_cosines),
    )
    return ranking.reordered(np.argsort(-ranking.scores, kind="stable"))


def _joined(retriever: str, cosines: Scores, shares: Scores, words: Scores | None = None) -> Scores:
    """One score of several, at most 1; `shares` are of the highest possible BM25."""
    if retriever != "hybrid":
        return cosines if retriever == "dense" else shares
    parts, most = cosines + BM25_WEIGHT * shares, 1 + BM25_WEIGHT
    if words is not None:
        parts, most = parts + words, most + 1
    return np.asarray(parts / most, np.float32)


def _candidates(snapshot: Snapshot, found: RowScores, retriever: str) -> Indices:
    chosen, starts = set[int](), snapshot.first_rows[:-1]
    if retriever != "bm25":
        chosen |= _leading(_best(found.cosines, starts), above=-1)
    if retriever != "dense":
        chosen |= _leading(_best(found.bm25, starts), above=0)
    return np.array(sorted(chosen), np.int64)


def _leading(scores: Scores, above: float) -> set[int]:
    count = min(CANDIDATES_EACH, len(scores))
    top = np.argpartition(-scores, count - 1)[:count] if count else np.zeros(0, np.int64)
    return {int(at) for at in top if scores[at] > above}


def _rows_of(snapshot: Snapshot, documents: Indices) -> tuple[Indices, Indices, Indices]:
    """The documents' rows, the position of each one's document, and where each document starts."""
    first = snapshot.first_rows[documents]
    counts = snapshot.first_rows[documents + 1] - first
    starts, owners = np.cumsum(counts) - counts, np.repeat(np.arange(len(documents)), counts)
    return np.arange(counts.sum()) + (first - starts)[owners], owners, starts


def _words_met(snapshot: Snapshot, query: Embedding, documents: Indices) -> Scores | None:
    """The mean of each document's best cosine with each query word; None without states.

    A word weighs by its rarity. Of the sentences only those that are nearest to the query are
    searched.
    """
    found = [snapshot.entries[at].states for at in documents]
    best = [_best_words(query, states) for states in found if states is not None]
    if not best:
        return None
    rarities = [_rarity(snapshot.words[word], snapshot.texts) for word in query.words]
    weights = np.array(rarities, np.float32)
    met: Scores = np.stack(best) @ (weights / weights.sum())
    return met


def _best_words(query: Embedding, states: WordStates) -> Scores:
    """The cosine of each query word with the nearest word of the nearest sentences, [words]."""
    near = np.argsort(-(states.means @ query.vector), kind="stable")[:_SENTENCES_EACH]
    sentences = np.concatenate([states.sentences[at] for at in near])
    best: Scores = late_interaction(query.states, sentences).max(axis=0)
    return best


def _best(values: Scores, starts: Indices) -> Scores:
    """The highest of each document's values: shape [rows] becomes [documents]."""
    return np.maximum.reduceat(values, starts) if len(starts) else values[:0]
