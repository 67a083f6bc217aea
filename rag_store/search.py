"""One query against one snapshot: the label, and what it was made from."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from rag_store.documents import passage
from rag_store.embedders.protocol import Embedding, Vectors
from rag_store.embedders.queue import Embedded
from rag_store.label import Candidate, Label, Threshold, Timings, says_something
from rag_store.ranking import BM25_WEIGHT, Nearest, Ranking, RowScores, Snapshot, rank, score_rows
from rag_store.settings import Settings
from rag_store.store import Entry
from rag_store.terms import terms

_GAP = " … "
_RECALL_AT = 10
_SAME = 1e-5


@dataclass(frozen=True, slots=True)
class Searcher:
    """A snapshot and how it is searched. `nearest` is asked where comparing all takes too long."""

    snapshot: Snapshot
    settings: Settings
    threshold: Threshold
    nearest: Nearest | None = None

    def find(self, query: str, embedded: Embedded, waited_ms: float = 0.0) -> "Answer":
        """The candidates of the query; `waited_ms` is added to its time in queues."""
        words, embedding = terms(query), embedded.embedding
        begun_s = time.perf_counter()
        scores = score_rows(self.snapshot, embedding, words, self.nearest)
        searched_s = time.perf_counter()
        ranking = rank(self.snapshot, embedding, scores, self.settings.retriever)
        fused_s = time.perf_counter()
        passages = self._passages(embedding, scores, ranking)
        rerank_ms = (time.perf_counter() - fused_s) * 1000 if passages else 0.0
        search_ms, fuse_ms = (searched_s - begun_s) * 1000, (fused_s - searched_s) * 1000
        queue_ms = embedded.queue_ms + waited_ms
        timings = Timings(queue_ms, embedded.embed_ms, search_ms, fuse_ms, rerank_ms)
        return Answer(self, words, says_something(query), ranking, timings, passages)

    def _passages(self, query: Embedding, scores: RowScores, ranking: Ranking) -> list[str]:
        spec, snapshot = self.settings.reranker, self.snapshot
        if not spec.url:
            return []
        shares, first_rows = scores.bm25 / (scores.most or 1), snapshot.first_rows
        found = ranking.documents[: spec.documents]
        read = [(snapshot.entries[at], shares[first_rows[at] : first_rows[at + 1]]) for at in found]
        return [excerpt(entry, query.vector, of, spec.chunks) for entry, of in read]


@dataclass(frozen=True, slots=True)
class Answer:
    """A query's candidates and what they come to, without the scores of all rows: many may wait.

    A reranker is to read `passages`, one of each of the first candidates; `relevances` are of those
    that it has read.
    """

    searcher: Searcher
    words: list[str]
    is_question: bool
    ranking: Ranking
    timings: Timings
    passages: list[str]
    relevances: tuple[float, ...] = ()

    def reranked(self, relevances: Sequence[float], asked_ms: float) -> "Answer":
        """The first candidates in the order of the relevance that each of them has."""
        order = np.arange(len(self.ranking.documents))
        first = np.argsort(-np.array(relevances), kind="stable")
        order[: len(first)] = first
        return replace(
            self,
            ranking=self.ranking.reordered(order),
            timings=replace(self.timings, rerank_ms=self.timings.rerank_ms + asked_ms),
            relevances=tuple(relevances[at] for at in first),
        )

    @property
    def ranked(self) -> tuple[str, ...]:
        """The ids of all candidates, best first."""
        return tuple(self.searcher.snapshot.entries[at].doc_id for at in self.ranking.documents)

    @property
    def chunk_text(self) -> str:
        """The best candidate's chunk; empty without candidates."""
        return self.searcher.snapshot.rows[self.ranking.rows[0]].text if self.ranked else ""

    @property
    def terms(self) -> dict[str, float]:
        """The query's terms, with their BM25 weights in that chunk; 0 for those it has not."""
        if not self.ranked:
            return dict.fromkeys(self.words, 0.0)
        chunks, best = self.searcher.snapshot.chunks, int(self.ranking.rows[0])
        return {word: chunks.weight(word, best) for word in self.words}

    @property
    def label(self) -> Label:
        """The best candidate's document, where its score is high enough, and all that is told."""
        threshold = self.searcher.threshold.threshold
        count = min(self.searcher.settings.candidates, len(self.ranking.documents))
        candidates = tuple(map(self._candidate, range(count)))
        if not candidates:
            return Label(None, 0.0, threshold, 0.0, False, (), self.timings)
        score = min(1.0, max(0.0, candidates[0].score)) if self.is_question else 0.0
        kept = self.is_question and score >= threshold
        doc_id = candidates[0].doc_id if kept else None
        # Of as many as were compared in the same way.
        deciding = self.relevances or self.ranking.scores.tolist()
        margin = deciding[0] - deciding[1] if len(deciding) > 1 else abs(deciding[0])
        # Whether vectors alone and words alone put the best candidate first too.
        alone = self.ranking.cosines, self.ranking.bm25
        agree = bool(alone[1][0]) and all(int(np.argmax(each)) == 0 for each in alone)
        return Label(doc_id, score, threshold, margin, agree, candidates, self.timings)

    def _candidate(self, at: int) -> Candidate:
        ranking, row = self.ranking, self.searcher.snapshot.rows[self.ranking.rows[at]]
        parts = ranking.scores, ranking.cosines, ranking.bm25
        score, cosine, bm25 = (float(each[at]) for each in parts)
        question = row.text if row.is_question else None
        relevance = self.relevances[at] if at < len(self.relevances) else None
        return Candidate(
            row.doc_id, row.title, score, cosine, bm25, row.ordinal, question, relevance
        )


def excerpt(entry: Entry, query: Vectors, shares: npt.NDArray[np.float32], count: int) -> str:
    """What a reranker reads of a document: its title and `count` best chunks in their order.

    `query` has the shape [dim]; `shares` are of the highest possible BM25, of each row of the
    entry, shape [rows]. What chunks that follow one another share is said once.
    """
    told = entry.chunk_count
    scores = entry.vectors[:told] @ query + BM25_WEIGHT * shares[:told]
    runs: list[str] = []
    last, end = -2, 0
    for at in np.sort(np.argsort(-scores, kind="stable")[:count]):
        row = entry.rows[at]
        if row.ordinal == last + 1:
            runs[-1] += row.text[end - row.start :]
        else:
            runs.append(row.text)
        last, end = row.ordinal, row.start + len(row.text)
    return passage(entry.title, _GAP.join(run.strip() for run in runs))


@dataclass(frozen=True, slots=True)
class Neighbours:
    """One query asked of Chroma's HNSW index, and by comparing all chunks.

    `recall` is the share of the 10 nearest chunks that are among the first 10 of the index, where
    a chunk as near as the tenth counts as one of them.
    """

    recall: float
    exact_ms: float
    hnsw_ms: float


def compare(snapshot: Snapshot, nearest: Nearest, vector: Vectors) -> Neighbours:
    """Ask both for the chunks nearest to a vector of shape [dim]. Raises StoreError."""
    begun_s = time.perf_counter()
    cosines = snapshot.vectors @ vector
    exact_s = time.perf_counter()
    row_ids, _ = nearest(vector)
    hnsw_s = time.perf_counter()
    wanted = min(_RECALL_AT, len(cosines))
    tenth = np.sort(cosines)[-wanted]
    held = [snapshot.row_of_id[row_id] for row_id in row_ids if row_id in snapshot.row_of_id]
    found = sum(bool(cosines[row] >= tenth - _SAME) for row in held[:wanted])
    return Neighbours(found / wanted, (exact_s - begun_s) * 1000, (hnsw_s - exact_s) * 1000)
