"""One query against one snapshot: the label, and what it was made from."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from rag_store.decision import Threshold, says_something
from rag_store.embedders import Embedding
from rag_store.embedders.queue import Embedded
from rag_store.label import Candidate, Label, Timings
from rag_store.ranking import Nearest, Ranking, RowScores, rank, score_rows
from rag_store.reranking.excerpt import excerpt
from rag_store.settings import Settings
from rag_store.snapshot import Snapshot
from rag_store.terms import terms


@dataclass(frozen=True, slots=True)
class Term:
    """A term of the query, and its BM25 weight in the best candidate's chunk; 0 where absent."""

    text: str
    weight: float


@dataclass(frozen=True, slots=True)
class Answer:
    """A label and its reasons: the best candidate's chunk, and the terms.

    `ranked` are the ids of all that were candidates, best first.
    """

    label: Label
    ranked: tuple[str, ...]
    chunk_text: str
    terms: tuple[Term, ...]


@dataclass(frozen=True, slots=True)
class Found:
    """A query's candidates. `relevances` are the reranker's, of the first of them.

    `is_question` is False for a query that says nothing.
    """

    words: list[str]
    is_question: bool
    embedding: Embedding
    scores: RowScores
    ranking: Ranking
    timings: Timings
    relevances: tuple[float, ...] = ()

    @property
    def deciding(self) -> Sequence[float]:
        """What puts the first candidates in their order, of as many as were compared."""
        return self.relevances or self.ranking.scores.tolist()

    def reranked(self, relevances: Sequence[float], rerank_ms: float) -> "Found":
        """The first candidates in the order of the relevance that each of them has."""
        order = np.arange(len(self.ranking.documents))
        first = np.argsort(-np.array(relevances), kind="stable")
        order[: len(first)] = first
        return replace(
            self,
            ranking=self.ranking.reordered(order),
            timings=replace(self.timings, rerank_ms=rerank_ms),
            relevances=tuple(relevances[at] for at in first),
        )

    def waited(self, more_ms: float) -> "Found":
        """The same after another wait for a thread."""
        queue_ms = self.timings.queue_ms + more_ms
        return replace(self, timings=replace(self.timings, queue_ms=queue_ms))


@dataclass(frozen=True, slots=True)
class Searcher:
    """A snapshot and how it is searched. `nearest` is asked where comparing all takes too long."""

    snapshot: Snapshot
    settings: Settings
    threshold: Threshold
    nearest: Nearest | None = None

    def find(self, query: str, embedded: Embedded, waited_ms: float = 0.0) -> Found:
        """The candidates of the query; `waited_ms` is added to its time in queues."""
        words = terms(query)
        begun_s = time.perf_counter()
        scores = score_rows(self.snapshot, embedded.embedding, words, self.nearest)
        searched_s = time.perf_counter()
        ranking = rank(self.snapshot, embedded.embedding, scores, self.settings.retriever)
        search_ms = (searched_s - begun_s) * 1000
        fuse_ms = (time.perf_counter() - searched_s) * 1000
        queue_ms = embedded.queue_ms + waited_ms
        timings = Timings(queue_ms, embedded.embed_ms, search_ms, fuse_ms)
        return Found(words, says_something(query), embedded.embedding, scores, ranking, timings)

    def passages(self, found: Found) -> list[str]:
        """What a reranker is to read: a text for each of the first candidates."""
        spec, query = self.settings.reranker, found.embedding.vector
        shares = found.scores.bm25 / (found.scores.most or 1)
        documents = found.ranking.documents[: spec.documents]
        rows = [slice(*self.snapshot.first_rows[at : at + 2]) for at in documents]
        return [
            excerpt(self.snapshot.entries[at], query, shares[where], spec.chunks)
            for at, where in zip(documents, rows, strict=True)
        ]

    def answer(self, found: Found) -> Answer:
        """The label of what was found."""
        ranking, words, begun_s = found.ranking, found.words, time.perf_counter()
        agree = _agree(ranking)
        fuse_ms = found.timings.fuse_ms + (time.perf_counter() - begun_s) * 1000
        label = self._label(found, agree, replace(found.timings, fuse_ms=fuse_ms))
        ranked = tuple(self.snapshot.entries[at].doc_id for at in ranking.documents)
        return Answer(label, ranked, *self._reasons(ranking, words))

    def _label(self, found: Found, agree: bool, timings: Timings) -> Label:
        scores = found.deciding
        candidates = tuple(
            self._candidate(found, at)
            for at in range(min(self.settings.candidates, len(found.ranking.documents)))
        )
        if not candidates:
            return Label(None, 0.0, self.threshold.threshold, 0.0, False, (), timings)
        score = min(1.0, max(0.0, candidates[0].score)) if found.is_question else 0.0
        kept = found.is_question and score >= self.threshold.threshold
        doc_id = candidates[0].doc_id if kept else None
        margin = float(scores[0] - scores[1]) if len(scores) > 1 else float(abs(scores[0]))
        return Label(doc_id, score, self.threshold.threshold, margin, agree, candidates, timings)

    def _candidate(self, found: Found, at: int) -> Candidate:
        ranking = found.ranking
        entry = self.snapshot.entries[ranking.documents[at]]
        row = self.snapshot.rows[ranking.rows[at]]
        return Candidate(
            entry.doc_id,
            entry.title,
            float(ranking.scores[at]),
            float(ranking.cosines[at]),
            float(ranking.bm25[at]),
            row.ordinal,
            row.text if row.is_question else None,
            found.relevances[at] if at < len(found.relevances) else None,
        )

    def _reasons(self, ranking: Ranking, words: list[str]) -> tuple[str, tuple[Term, ...]]:
        if len(ranking.documents) == 0:
            return "", tuple(Term(word, 0.0) for word in dict.fromkeys(words))
        best = int(ranking.rows[0])
        return self.snapshot.rows[best].text, tuple(
            Term(word, self._weight(word, best)) for word in dict.fromkeys(words)
        )

    def _weight(self, word: str, row: int) -> float:
        rows, weights = self.snapshot.chunks.postings(word)
        return float(weights[rows == row].sum())


def _agree(ranking: Ranking) -> bool:
    """Whether vectors alone and words alone put the best candidate first too."""
    if len(ranking.documents) == 0 or ranking.bm25[0] == 0:
        return False
    return int(np.argmax(ranking.cosines)) == 0 == int(np.argmax(ranking.bm25))
