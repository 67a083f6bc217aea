"""One query against one snapshot: the label, and what it was made from."""

import time
from dataclasses import dataclass

import numpy as np

from rag_store.decision import Features, Threshold, features
from rag_store.embedders.queue import Embedded
from rag_store.label import Candidate, Label, Timings
from rag_store.ranking import Nearest, Ranking, rank, score_rows
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
    """A label and its reasons: the best candidate's chunk, the terms, the signs weighed.

    `ranked` are the ids of all that were candidates, best first.
    `features` are in the order of `decision.FEATURES`; zeros where there is no candidate.
    """

    label: Label
    ranked: tuple[str, ...]
    chunk_text: str
    terms: tuple[Term, ...]
    features: Features


@dataclass(frozen=True, slots=True)
class Searcher:
    """A snapshot and how it is searched. `nearest` is asked where comparing all takes too long."""

    snapshot: Snapshot
    settings: Settings
    threshold: Threshold
    nearest: Nearest | None = None

    def answer(self, query: str, embedded: Embedded, waited_ms: float = 0.0) -> Answer:
        """The label of the query; `waited_ms` is added to its time in queues."""
        words = terms(query)
        begun_s = time.perf_counter()
        found = score_rows(self.snapshot, embedded.embedding, words, self.nearest)
        searched_s = time.perf_counter()
        retriever, fusion = self.settings.retriever, self.settings.fusion
        ranking = rank(self.snapshot, embedded.embedding, found, retriever, fusion)
        agree = _agree(ranking)
        signs: Features = np.zeros(len(self.threshold.weights))
        if len(ranking.documents):
            signs = features(self.snapshot, ranking, embedded.embedding, words)
        search_ms, fuse_ms = (
            (searched_s - begun_s) * 1000,
            (time.perf_counter() - searched_s) * 1000,
        )
        queue_ms = embedded.queue_ms + waited_ms
        timings = Timings(queue_ms, embedded.embed_ms, search_ms, fuse_ms)
        label = self._label(ranking, signs, agree, timings)
        ranked = tuple(self.snapshot.entries[at].doc_id for at in ranking.documents)
        return Answer(label, ranked, *self._reasons(ranking, words), signs)

    def _label(self, ranking: Ranking, signs: Features, agree: bool, timings: Timings) -> Label:
        candidates = tuple(
            self._candidate(ranking, at)
            for at in range(min(self.settings.candidates, len(ranking.documents)))
        )
        if not candidates:
            return Label(None, 0.0, self.threshold.threshold, 0.0, False, (), timings)
        score = self.threshold.score(signs)
        doc_id = candidates[0].doc_id if score >= self.threshold.threshold else None
        scores = ranking.scores
        margin = float(scores[0] - scores[1]) if len(scores) > 1 else float(abs(scores[0]))
        return Label(doc_id, score, self.threshold.threshold, margin, agree, candidates, timings)

    def _candidate(self, ranking: Ranking, at: int) -> Candidate:
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
    if len(ranking.documents) == 0:
        return False
    return int(np.argmax(ranking.cosines)) == 0 == int(np.argmax(ranking.bm25))
