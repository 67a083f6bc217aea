"""The answer to a query: which document it is about, how sure that is, and when it is none.

The best candidate's score has to reach a threshold. A query that says nothing, without a letter or
of one stop word, is refused whatever it scores.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from rag_store.terms import STOPWORDS, pieces

KEEP = 0.95
"""The share of answerable queries that is kept unless told otherwise."""


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
    runner-up's where a reranker has read both; `agree` says whether vectors and words alone would
    have named the best candidate too. Refused queries have candidates also, best first.
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


@dataclass(frozen=True, slots=True)
class Threshold:
    """Below it a query is refused; fitted on so many answerable and other queries, if any."""

    threshold: float
    fitted_on: tuple[int, int] = (0, 0)

    def as_json(self) -> str:
        """One line of JSON, as kept beside the collection."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Threshold":
        """What `as_json` gave. Raises ValueError, TypeError or KeyError for anything else."""
        kept = json.loads(text)
        answerable, unanswerable = kept["fitted_on"]
        return cls(float(kept["threshold"]), (int(answerable), int(unanswerable)))


# Keeps 95 % of half of the questions of nine collections on average, without the demo corpus's.
# Scores of another embedder lie elsewhere: none of theirs is refused.
SHIPPED = {"minilm": Threshold(0.35)}


def says_something(query: str) -> bool:
    """Whether there is a letter in the query, and more than one stop word."""
    words = {piece for piece in pieces(query) if piece[0].isalnum()}
    only = next(iter(words)) if len(words) == 1 else ""
    return any(map(str.isalpha, query)) and only not in STOPWORDS


def fit(answerable: Sequence[float], unanswerable: int, keep: float = KEEP) -> Threshold:
    """The highest threshold that keeps the share `keep` of answerable scores, of which one is."""
    scores = np.sort(answerable)
    at = lost_at_most(keep, len(scores))
    return Threshold(float(scores[at]), (len(answerable), unanswerable))


def lost_at_most(keep: float, count: int) -> int:
    """How many of `count` queries, of which there is one, may be refused to keep the share."""
    # 1 - 0.9 is less than a tenth by a rounding error.
    return min(int((1 - keep) * count + 1e-9), count - 1)
