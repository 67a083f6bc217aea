"""How near documents are to a query: four scores of each.

The cosine and BM25 of its best chunk, and the cosine of each query word's state with the nearest
word, averaged by the rarity of the query's words (Khattab and Zaharia's late interaction, SIGIR
2020, with an encoder that was not trained for it): in its best sentence, and in all of the
sentences that are nearest to the query.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rag_store.embedders import Embedding, States, Vectors
from rag_store.embedders.protocol import late_interaction
from rag_store.fusion import fuse
from rag_store.snapshot import Snapshot

Scores = npt.NDArray[np.float32]
Indices = npt.NDArray[np.int64]
Nearest = Callable[[Vectors, int], tuple[Sequence[str], Scores]]

SENTENCES_EACH = 12
NEAREST_ROWS = 400
NOT_COMPARED = -1.0


@dataclass(frozen=True, slots=True)
class RowScores:
    """Cosine and BM25 of every chunk, shape [rows]; NOT_COMPARED where no cosine was needed.

    `coverage` is the share of the query's terms that the chunk with the most of them holds.
    """

    cosines: Scores
    bm25: Scores
    coverage: float


@dataclass(frozen=True, slots=True)
class Signals:
    """What says how near documents are to a query; they are in the order they were asked for.

    `rows` has each one's best chunk. `parts` are four scores, each of shape [documents]: cosine
    and BM25 of the best chunk, the query's words in the best sentence, and in all near ones; the
    last two are zeros without states. `words` and `weights` are those of a `Ranking`.
    """

    documents: Indices
    rows: Indices
    parts: tuple[Scores, Scores, Scores, Scores]
    words: Scores
    weights: Scores


def score_rows(
    snapshot: Snapshot, query: Embedding, words: Sequence[str], nearest: Nearest | None
) -> RowScores:
    """Compare every chunk with the query; with `nearest`, only those it names by cosine."""
    bm25 = snapshot.chunks.scores(words)
    coverage = float(snapshot.chunks.coverage(words).max(initial=0.0))
    if nearest is None:
        return RowScores(snapshot.vectors @ query.vector, bm25, coverage)
    cosines = np.full(len(snapshot.rows), NOT_COMPARED, np.float32)
    for row_id, cosine in zip(*nearest(query.vector, NEAREST_ROWS), strict=True):
        # A row that was added after the snapshot was taken is not in it.
        if row_id in snapshot.row_of_id:
            cosines[snapshot.row_of_id[row_id]] = cosine
    return RowScores(cosines, bm25, coverage)


def compare(
    snapshot: Snapshot,
    query: Embedding,
    found: RowScores,
    retriever: str,
    documents: Indices,
    texts_too: bool = False,
) -> list[Signals]:
    """The signals of some documents, given as ascending indices of the snapshot's entries.

    With `texts_too` there are second ones, without the questions that were written for them.
    """
    rows, owners = _spans(snapshot.first_rows[documents], snapshot.first_rows[documents + 1])
    cosines, bm25 = _cosines(snapshot, query, found, rows), found.bm25[rows]
    by_row = {"dense": cosines, "bm25": bm25}
    leading = by_row.get(retriever, fuse("zscore", [cosines, bm25], [1, 1]))
    weights = _weights(snapshot, query)
    words = _words(snapshot, query, weights, documents, texts_too)
    views = [np.ones(len(rows), np.bool_), rows < snapshot.chunk_ends[documents][owners]]
    signals = []
    # Without `texts_too` there are no words for the second view.
    for view, (best, together) in zip(views, words, strict=False):
        owned = owners[view]
        starts = np.searchsorted(owned, np.arange(len(documents)))
        near = _best(cosines[view], starts), _best(bm25[view], starts)
        late = best @ weights, together @ weights
        first = rows[view][_first(1, leading[view], owned)]
        signals.append(Signals(documents, first, (*near, *late), best, weights))
    return signals


def _cosines(snapshot: Snapshot, query: Embedding, found: RowScores, rows: Indices) -> Scores:
    cosines = found.cosines[rows]
    missing = cosines == NOT_COMPARED
    cosines[missing] = snapshot.vectors[rows[missing]] @ query.vector
    return cosines


def _spans(first: Indices, ends: Indices) -> tuple[Indices, Indices]:
    """The numbers from each first to before its end, and for each the position of that first."""
    lengths = ends - first
    before = np.cumsum(lengths) - lengths
    numbers = np.arange(lengths.sum()) + np.repeat(first - before, lengths)
    return numbers, np.repeat(np.arange(len(first)), lengths)


def _first(count: int, scores: Scores, owners: Indices) -> Indices:
    """The positions of each owner's best scores, at most `count` of each; owners ascend."""
    order = np.lexsort((-scores, owners))
    places = np.arange(len(order)) - np.searchsorted(owners, owners)
    leading: Indices = order[places < count]
    return leading


def _weights(snapshot: Snapshot, query: Embedding) -> Scores:
    """The share of each query word in the comparison, by its rarity; they sum to one."""
    if not snapshot.states:
        return np.zeros(0, np.float32)
    rarities = snapshot.words.rarities(query.words)
    shares: Scores = rarities / rarities.sum()
    return shares


def _words(
    snapshot: Snapshot, query: Embedding, weights: Scores, documents: Indices, texts_too: bool
) -> list[tuple[Scores, Scores]]:
    """Each document's cosine with each query word, shape [documents, query words].

    First in the best of its sentences, then in any of those that are nearest to the query. With
    `texts_too` there is a second pair, of the sentences of texts alone.
    """
    if not snapshot.states or len(documents) == 0:
        none = np.zeros((len(documents), len(weights)), np.float32)
        return [(none, none)] * (1 + texts_too)
    first, last = snapshot.first_sentences[documents], snapshot.first_sentences[documents + 1]
    sentences, owners = _spans(first, last)
    # Rows in a piece are compared where they lie; picked out one by one they would be copied.
    parts = zip(first, last, strict=True)
    similar = np.concatenate([snapshot.means[a:b] @ query.vector for a, b in parts])
    near = [_first(SENTENCES_EACH, similar, owners)]
    if texts_too:
        (told,) = np.nonzero(sentences < snapshot.sentence_ends[documents][owners])
        near.append(told[_first(SENTENCES_EACH, similar[told], owners[told])])
    # What is near among all sentences is often near among fewer; each is compared once.
    every = np.unique(np.concatenate(near))
    by_sentence = _best_words(query.states, [snapshot.states[sentences[at]] for at in every])
    return [
        _best_and_together(by_sentence[np.searchsorted(every, at)], owners[at], weights)
        for at in near
    ]


def _best_and_together(
    by_sentence: Scores, owners: Indices, weights: Scores
) -> tuple[Scores, Scores]:
    best = by_sentence[_first(1, by_sentence @ weights, owners)]
    starts = np.searchsorted(owners, np.arange(len(best)))
    return best, np.maximum.reduceat(by_sentence, starts, axis=0)


def _best_words(query: States, sentences: Sequence[States]) -> Scores:
    """The cosine of each query word with the nearest word of each sentence, [sentences, words]."""
    ends = np.cumsum([len(each) for each in sentences])
    cosines = late_interaction(query, np.concatenate(sentences))
    best: Scores = np.maximum.reduceat(cosines, np.append(0, ends[:-1]), axis=0)
    return best


def _best(values: Scores, starts: Indices) -> Scores:
    return np.maximum.reduceat(values, starts) if len(starts) else values[:0]
