"""How often the label is right, how well strangers are refused, and how long it takes."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import binomtest, bootstrap, mannwhitneyu

from rag_store.documents import Query
from rag_store.label import Label, lost_at_most, says_something
from rag_store.library import Library

PERCENTILES = (50, 95, 99)
STAGES = ("queue_ms", "embed_ms", "search_ms", "fuse_ms", "rerank_ms", "total_ms")
_CUTOFF = 10
_RESAMPLES = 5000
_BLOCK = 1 << 20


@dataclass(frozen=True, slots=True)
class QueryEstimate:
    """A share or a mean of `count` queries, with its 95 % interval; all zero of none."""

    value: float
    low: float
    high: float
    count: int

    @classmethod
    def share(cls, hits: Sequence[bool]) -> "QueryEstimate":
        """The share of true ones, with Wilson's interval."""
        if not (count := len(hits)):
            return cls(0.0, 0.0, 0.0, 0)
        interval = binomtest(sum(hits), count).proportion_ci(method="wilson")
        return cls(sum(hits) / count, float(interval.low), float(interval.high), count)

    @classmethod
    def mean(cls, values: Sequence[float]) -> "QueryEstimate":
        """The mean, with the interval of resampled means (Efron, Annals of Statistics 1979)."""
        count = len(values)
        mean = sum(values) / count if count else 0.0
        if len(set(values)) < 2:
            return cls(mean, mean, mean, count)
        # All resamples at once would not fit into memory.
        batch = max(1, _BLOCK // count)
        found = bootstrap(
            (values,), np.mean, n_resamples=_RESAMPLES, batch=batch, method="percentile", rng=1
        ).confidence_interval
        return cls(mean, float(found.low), float(found.high), count)


@dataclass(frozen=True, slots=True)
class Paired:
    """Two ways on the same queries: how often only the first is right, and only the second."""

    only_first: int
    only_second: int

    @classmethod
    def of(cls, first: Sequence[bool], second: Sequence[bool]) -> "Paired":
        """Query by query, in the same order."""
        pairs = Counter(zip(first, second, strict=True))
        return cls(pairs[True, False], pairs[False, True])

    @property
    def p(self) -> float:
        """McNemar's exact test, two-sided: how likely so uneven counts are if both are as good."""
        count = self.only_first + self.only_second
        return float(binomtest(self.only_first, count).pvalue) if count else 1.0


@dataclass(frozen=True, slots=True)
class OperatingPoint:
    """What happens when queries that score below `threshold`, or say nothing, are refused.

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

    def refused(self, threshold: float) -> bool:
        """Whether the threshold leaves it without a document, as `Label` says."""
        is_asked = bool(self.ranked) and says_something(self.query.text)
        return not is_asked or self.label.score < threshold

    @property
    def right(self) -> bool:
        """Whether the first document is a true one."""
        return self.rank == 1


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Answerable and unanswerable queries with their labels; the figures are made from them."""

    answerable: tuple[Outcome, ...]
    unanswerable: tuple[Outcome, ...]

    def top(self, count: int) -> QueryEstimate:
        """How often a true document is among the first `count`, which is at most 10."""
        hits = [(each.rank or _CUTOFF + 1) <= count for each in self.answerable]
        return QueryEstimate.share(hits)

    @property
    def mrr(self) -> QueryEstimate:
        """Mean reciprocal rank of the first true document, counting the first 10."""
        return QueryEstimate.mean([1 / each.rank if each.rank else 0.0 for each in self.answerable])

    @property
    def ndcg(self) -> QueryEstimate:
        """Normalised discounted cumulative gain of the first 10, with gains of 0 and 1."""
        return QueryEstimate.mean([_ndcg(each) for each in self.answerable])

    def against(self, other: "Evaluation") -> Paired:
        """Which label is right where the other's is not; both of the same queries in order."""
        return Paired.of(
            [each.right for each in self.answerable], [each.right for each in other.answerable]
        )

    @property
    def by_kind(self) -> dict[str, QueryEstimate]:
        """Top-1 of each kind of question, for those that have one."""
        return _shares([(each.query.kind, each.right) for each in self.answerable])

    @property
    def by_document(self) -> dict[str, QueryEstimate]:
        """Top-1 of each document that is asked for."""
        return _shares([(each.query.doc_ids[0], each.right) for each in self.answerable])

    def refused(self, threshold: float) -> QueryEstimate:
        """How many of the unanswerable queries are refused with the threshold."""
        return QueryEstimate.share([each.refused(threshold) for each in self.unanswerable])

    def refused_by_kind(self, threshold: float) -> dict[str, QueryEstimate]:
        """The same for each kind of them."""
        return _shares([(each.query.kind, each.refused(threshold)) for each in self.unanswerable])

    @property
    def agreeing(self) -> tuple[QueryEstimate, QueryEstimate]:
        """How often dense and lexical agree, and how often the label is right when they do."""
        agree = [each.label.agree for each in self.answerable]
        right = [each.right for each in self.answerable if each.label.agree]
        return QueryEstimate.share(agree), QueryEstimate.share(right)

    def at_threshold(self, threshold: float) -> OperatingPoint:
        kept = [each for each in self.answerable if not each.refused(threshold)]
        share = len(kept) / len(self.answerable) if self.answerable else 0.0
        right = QueryEstimate.share([each.right for each in kept])
        return OperatingPoint(threshold, share, right.value, self.refused(threshold).value)

    def keeping(self, share: float) -> OperatingPoint:
        """The highest threshold that keeps at least this share of the answerable queries."""
        scores = sorted(each.label.score for each in self.answerable)
        return self.at_threshold(scores[lost_at_most(share, len(scores))] if scores else 0.0)

    @property
    def auroc(self) -> float:
        """The chance that an answerable query scores above an unanswerable one; ties count half."""
        yes = [each.label.score for each in self.answerable]
        no = [each.label.score for each in self.unanswerable]
        pairs = len(yes) * len(no)
        return float(mannwhitneyu(yes, no).statistic) / pairs if pairs else 0.0

    @property
    def confusions(self) -> dict[tuple[str, str], int]:
        """How often a query of the first document was labelled with the second, most first."""
        counts = Counter(
            (each.query.doc_ids[0], each.ranked[0])
            for each in self.answerable
            if not each.right and each.ranked
        )
        return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))

    def latency_ms(self) -> dict[str, dict[str, float]]:
        """For each of STAGES its percentiles over all queries."""
        timings = [each.label.timings for each in (*self.answerable, *self.unanswerable)]
        return {stage: percentiles([getattr(each, stage) for each in timings]) for stage in STAGES}


def percentiles(values: Sequence[float]) -> dict[str, float]:
    """Those of PERCENTILES, as `p50`; zeros of nothing."""
    return {f"p{at}": float(np.percentile(values or [0.0], at)) for at in PERCENTILES}


async def evaluate(
    library: Library, queries: Sequence[Query], unanswerable: Sequence[Query] = ()
) -> Evaluation:
    """Label queries in turn; those without a document are unanswerable. Raises as `Library.ask`."""
    found = []
    for query in (*queries, *unanswerable):
        answer = await library.ask(query)
        found.append(Outcome(query, answer.label, answer.ranked[:_CUTOFF]))
    return Evaluation(
        tuple(each for each in found if each.query.doc_ids),
        tuple(each for each in found if not each.query.doc_ids),
    )


def _shares(hits: Sequence[tuple[str, bool]]) -> dict[str, QueryEstimate]:
    """A share for each name but the empty one, sorted by name."""
    names = sorted({name for name, _ in hits} - {""})
    return {name: QueryEstimate.share([hit for of, hit in hits if of == name]) for name in names}


def _ndcg(outcome: Outcome) -> float:
    gold = outcome.query.doc_ids
    gains = [1 / math.log2(at + 1) for at, doc_id in enumerate(outcome.ranked, 1) if doc_id in gold]
    return sum(gains) / sum(1 / math.log2(at + 1) for at in range(1, min(len(gold), _CUTOFF) + 1))
