"""The answer to a query: which document it is about, and how sure that is."""

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Candidate:
    """A document with its scores for a query; `cosine` and `bm25` are of its best chunks.

    `score` is the fused one, comparable only within one query. `chunk` counts from 0 and is the
    chunk that cosine and BM25 together put first (only one of them with retriever dense or bm25).
    The document's own questions count on after its chunks; `question` is the text where one of
    them was first. `relevance` is the reranker's, None where it has not read the document.
    """

    doc_id: str
    title: str
    score: float
    cosine: float
    bm25: float
    chunk: int
    question: str | None = None
    relevance: float | None = None


@dataclass(frozen=True, slots=True)
class Timings:
    """Where a label's time went.

    `queue_ms` is all waiting: for a thread, a batch, or the index after a change.
    `rerank_ms` is all that a reranker takes, from making what it reads to its answer; 0 without.
    """

    queue_ms: float
    embed_ms: float
    search_ms: float
    fuse_ms: float
    rerank_ms: float = 0.0

    @property
    def total_ms(self) -> float:
        """All of it."""
        return self.queue_ms + self.embed_ms + self.search_ms + self.fuse_ms + self.rerank_ms


@dataclass(frozen=True, slots=True)
class Label:
    """`doc_id` is None where the score, from 0 to 1, is below the threshold.

    `margin` is the best candidate's fused score less the runner-up's, or its relevance less the
    runner-up's where a reranker has read both; `agree` says whether
    vectors and words alone would have named the best candidate too. The candidates, best first,
    are given for refused queries also.
    """

    doc_id: str | None
    score: float
    threshold: float
    margin: float
    agree: bool
    candidates: tuple[Candidate, ...]
    timings: Timings

    def as_json(self) -> dict[str, Any]:
        """All of it as the service says it; times in milliseconds."""
        told = {"object": "label", **asdict(self)}
        told["timings"]["total_ms"] = self.timings.total_ms
        return told

    @property
    def best(self) -> Candidate | None:
        """The best candidate, refused or not; None for an empty library."""
        return self.candidates[0] if self.candidates else None
