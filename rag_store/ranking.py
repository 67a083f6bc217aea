"""From a query's vector and words to documents in order, best first.

First every chunk is compared by cosine and by BM25, and a document counts as its best chunk. The
leading documents of either list are the candidates. Their four signals, see `signals`, are made
comparable and added; the more of the query's terms some chunk holds, the more BM25 counts and the
less the cosine. Where candidates have questions that were written for them, the sum of the signals
without these counts too: of many questions some are near to any query, and the text itself is not.
With an adapter, what it has learned of the documents is added.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rag_store.embedders import Embedding
from rag_store.embedders.head import BELOW
from rag_store.fusion import fuse
from rag_store.settings import CANDIDATES_EACH
from rag_store.signals import Indices, RowScores, Scores, compare
from rag_store.snapshot import Snapshot

TEXTS_SHARE = np.float32(1 / 5)
"""Of the sum without questions in a score, where a candidate has some."""
LEARNED_WEIGHT = 2.0
"""Of what an adapter has learned; the four signals weigh three together."""


@dataclass(frozen=True, slots=True)
class Ranking:
    """The candidates, best first; all arrays have the shape [candidates].

    `documents` are indices of the snapshot's entries, `rows` each one's best chunk, and `words`
    has for each candidate its best cosine with each query word, shape [candidates, query words],
    whose `weights`, shape [query words], sum to one. Without states there are no words. `learned`
    are logarithms of the probabilities that an adapter gives them, NaN where it gives none.
    """

    documents: Indices
    rows: Indices
    scores: Scores
    cosines: Scores
    bm25: Scores
    words: Scores
    weights: Scores
    learned: Scores

    @property
    def late(self) -> Scores:
        """The weighted mean over the query's words; zero where there are no states."""
        return self.words @ self.weights

    def reordered(self, order: Indices) -> "Ranking":
        """The same candidates in another order, given as their positions."""
        return Ranking(
            self.documents[order],
            self.rows[order],
            self.scores[order],
            self.cosines[order],
            self.bm25[order],
            self.words[order],
            self.weights,
            self.learned[order],
        )


def rank(
    snapshot: Snapshot, query: Embedding, found: RowScores, retriever: str, fusion: str
) -> Ranking:
    """The candidates in order. `retriever` is hybrid, dense or bm25, `fusion` as in `fuse`."""
    learned = _learned(snapshot, query, retriever)
    documents = _candidates(snapshot, found, learned, retriever)
    texts_too = retriever == "hybrid" and snapshot.have_questions(documents)
    signals, *of_texts = compare(snapshot, query, found, retriever, documents, texts_too)
    scores = _fused(signals.parts, found.coverage, retriever, fusion)
    for texts in of_texts:
        by_text = _fused(texts.parts, found.coverage, retriever, fusion)
        scores += TEXTS_SHARE * (by_text - scores)
    if snapshot.learned is not None:
        likely = _filled(learned[documents]) - BELOW
        scores = scores + fuse(fusion, [likely], [LEARNED_WEIGHT])
    cosines, bm25, *_ = signals.parts
    ranking = Ranking(
        documents,
        signals.rows,
        scores,
        cosines,
        bm25,
        signals.words,
        signals.weights,
        learned[documents],
    )
    return ranking.reordered(np.argsort(-scores, kind="stable"))


def _learned(snapshot: Snapshot, query: Embedding, retriever: str) -> Scores:
    """For all documents; NaN for those that no adapter has learned."""
    if retriever != "hybrid" or snapshot.learned is None:
        return np.full(len(snapshot.entries), np.nan, np.float32)
    return snapshot.learned.log_probabilities(query.vector)


def _filled(learned: Scores) -> Scores:
    """What was not learned is neither likely nor unlikely."""
    known = ~np.isnan(learned)
    middle = learned[known].mean() if known.any() else BELOW
    return np.where(known, learned, middle).astype(np.float32)


def _candidates(snapshot: Snapshot, found: RowScores, learned: Scores, retriever: str) -> Indices:
    chosen: set[int] = set()
    if retriever != "bm25":
        chosen |= _leading(snapshot.best_by_document(found.cosines), above=-1)
    if retriever != "dense":
        chosen |= _leading(snapshot.best_by_document(found.bm25), above=0)
    if snapshot.learned is not None:
        chosen |= _leading(np.where(np.isnan(learned), BELOW, learned), above=BELOW)
    return np.array(sorted(chosen), np.int64)


def _leading(scores: Scores, above: float) -> set[int]:
    count = min(CANDIDATES_EACH, len(scores))
    top = np.argpartition(-scores, count - 1)[:count] if count else np.zeros(0, np.int64)
    return {int(at) for at in top if scores[at] > above}


def _fused(parts: Sequence[Scores], coverage: float, retriever: str, fusion: str) -> Scores:
    if retriever != "hybrid":
        return parts[1] if retriever == "bm25" else parts[0]
    return fuse(fusion, parts, (1 - coverage, coverage, 1.0, 1.0))
