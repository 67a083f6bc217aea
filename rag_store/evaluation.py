"""How often the label is right, how well strangers are refused, and how long it takes."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rag_store.documents import Query
from rag_store.label import Label
from rag_store.library import Library

PERCENTILES = (50, 95, 99)
STAGES = ("queue_ms", "embed_ms", "search_ms", "fuse_ms", "total_ms")
_CUTOFF = 10
_Z95 = 1.959964


@dataclass(frozen=True, slots=True)
class Share:
    """A share of `count` queries, with Wilson's 95 % interval."""

    value: float
    low: float
    high: float
    count: int

    @classmethod
    def of(cls, hits: Sequence[bool]) -> "Share":
        """The share of true ones; all zero without any."""
        count = len(hits)
        if count == 0:
            return cls(0.0, 0.0, 0.0, 0)
        share, square = sum(hits) / count, _Z95 * _Z95
        middle = (share + square / (2 * count)) / (1 + square / count)
        spread = math.sqrt(share * (1 - share) / count + square / (4 * count * count))
        half = _Z95 * spread / (1 + square / count)
        return cls(share, max(0.0, middle - half), min(1.0, middle + half), count)


@dataclass(frozen=True, slots=True)
class OperatingPoint:
    """What happens when queries that score below `threshold` are refused.

    `kept` is the share of answerable queries that are labelled, `right` the share of those that
    are labelled with a true document, `refused` the share of unanswerable ones refused.
    """

    threshold: float
    kept: float
    right: float
    refused: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """One query, its label whatever the threshold says, and the documents in order."""

    query: Query
    label: Label
    ranked: tuple[str, ...]

    @property
    def rank(self) -> int | None:
        """Where the first true document stands, from 1; None where it is not among them."""
        places = (at for at, doc_id in enumerate(self.ranked, 1) if doc_id in self.query.doc_ids)
        return next(places, None)

    @property
    def right(self) -> bool:
        """Whether the first document is a true one."""
        return self.rank == 1


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Answerable and unanswerable queries with their labels; the figures are made from them."""

    answerable: tuple[Outcome, ...]
    unanswerable: tuple[Outcome, ...]

    def top(self, count: int) -> Share:
        """How often a true document is among the first `count`, which is at most 10."""
        return Share.of([(each.rank or _CUTOFF + 1) <= count for each in self.answerable])

    @property
    def mrr(self) -> float:
        """Mean reciprocal rank of the first true document, counting the first 10."""
        return _mean([1 / each.rank if each.rank else 0.0 for each in self.answerable])

    @property
    def ndcg(self) -> float:
        """Normalised discounted cumulative gain of the first 10, with gains of 0 and 1."""
        return _mean([_ndcg(each) for each in self.answerable])

    @property
    def agreeing(self) -> tuple[Share, Share]:
        """How often dense and lexical agree, and how often the label is right when they do."""
        agreed = [each for each in self.answerable if each.label.agree]
        flags = [each.label.agree for each in self.answerable]
        return Share.of(flags), Share.of([each.right for each in agreed])

    def at_threshold(self, threshold: float) -> OperatingPoint:
        """What the threshold does."""
        kept = [each for each in self.answerable if each.label.score >= threshold]
        refused = [each.label.score < threshold for each in self.unanswerable]
        return OperatingPoint(
            threshold,
            len(kept) / len(self.answerable) if self.answerable else 0.0,
            _mean([float(each.right) for each in kept]),
            _mean([float(each) for each in refused]),
        )

    def keeping(self, share: float) -> OperatingPoint:
        """The highest threshold that keeps at least this share of the answerable queries."""
        scores = sorted(each.label.score for each in self.answerable)
        lost = int((1 - share) * len(scores) + 1e-9)
        return self.at_threshold(scores[lost] if lost < len(scores) else 0.0)

    @property
    def auroc(self) -> float:
        """The chance that an answerable query scores above an unanswerable one; ties count half."""
        no = np.array([each.label.score for each in self.unanswerable])
        chances = [
            float(np.mean(no < each.label.score) + np.mean(no == each.label.score) / 2)
            for each in self.answerable
        ]
        return _mean(chances) if len(no) else 0.0

    @property
    def confusions(self) -> dict[tuple[str, str], int]:
        """How often a query of the first document was labelled with the second, most first."""
        counts: dict[tuple[str, str], int] = {}
        for each in self.answerable:
            if not each.right and each.ranked:
                pair = (each.query.doc_ids[0], each.ranked[0])
                counts[pair] = counts.get(pair, 0) + 1
        return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))

    def latency_ms(self) -> dict[str, dict[int, float]]:
        """For each of STAGES its percentiles over all queries."""
        timings = [each.label.timings for each in (*self.answerable, *self.unanswerable)]
        columns = {stage: [getattr(each, stage) for each in timings] or [0.0] for stage in STAGES}
        return {
            stage: {at: float(np.percentile(values, at)) for at in PERCENTILES}
            for stage, values in columns.items()
        }


async def evaluate(
    library: Library, queries: Sequence[Query], unanswerable: Sequence[Query] = ()
) -> Evaluation:
    """Label all queries one after another; those without a document count as unanswerable.

    Raises as `Library.label`.
    """
    found = [await _outcome(library, query) for query in (*queries, *unanswerable)]
    return Evaluation(
        tuple(each for each in found if each.query.doc_ids),
        tuple(each for each in found if not each.query.doc_ids),
    )


async def _outcome(library: Library, query: Query) -> Outcome:
    answer = await library.explain(query.text)
    return Outcome(query, answer.label, answer.ranked[:_CUTOFF])


def _ndcg(outcome: Outcome) -> float:
    gold = outcome.query.doc_ids
    gains = [1 / math.log2(at + 1) for at, doc_id in enumerate(outcome.ranked, 1) if doc_id in gold]
    best = sum(1 / math.log2(at + 1) for at in range(1, min(len(gold), _CUTOFF) + 1))
    return sum(gains) / best


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
