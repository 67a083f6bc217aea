"""The figures of an evaluation, and the JSON object made of them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rag_store.cli.baselines import Baseline
from rag_store.document_index import Size
from rag_store.evaluation import Evaluation, Mean, OperatingPoint, Share, percentiles
from rag_store.search import Neighbours

COVERAGES = (1.0, 0.95, 0.9, 0.8)


@dataclass(frozen=True, slots=True)
class SizeFigures:
    """The evaluation with so many documents, and the HNSW index against exact search there."""

    size: Size
    evaluation: Evaluation
    neighbours: tuple[Neighbours, ...] = ()

    @property
    def recall(self) -> float | None:
        """Of the index, the mean over queries; None where it was not asked."""
        found = [each.recall for each in self.neighbours]
        return sum(found) / len(found) if found else None

    @property
    def exact_ms(self) -> dict[int, float]:
        """Percentiles of comparing all chunks."""
        return percentiles([each.exact_ms for each in self.neighbours])

    @property
    def hnsw_ms(self) -> dict[int, float]:
        """Percentiles of asking the index."""
        return percentiles([each.hnsw_ms for each in self.neighbours])


@dataclass(frozen=True, slots=True)
class Figures:
    """One evaluation or, with distractors, several; the last is with all documents.

    `baselines` are with all documents.
    """

    sizes: tuple[SizeFigures, ...]
    threshold: float
    baselines: dict[str, Baseline]

    @property
    def all_documents(self) -> SizeFigures:
        """The evaluation that counts."""
        return self.sizes[-1]


def as_json(figures: Figures) -> dict[str, Any]:
    """Shares from 0 to 1; intervals are with 95 %; times in milliseconds."""
    found, size = figures.all_documents.evaluation, figures.all_documents.size
    mrr, ndcg = found.mrr, found.ndcg
    return {
        "questions": len(found.answerable),
        "unanswerable": len(found.unanswerable),
        "documents": size.documents,
        "chunks": size.chunks,
        "questions_indexed": size.questions,
        "top1": found.top(1).value,
        "top1_interval": _interval(found.top(1)),
        "top3": found.top(3).value,
        "top3_interval": _interval(found.top(3)),
        "mrr": mrr.value,
        "mrr_interval": _interval(mrr),
        "ndcg": ndcg.value,
        "ndcg_interval": _interval(ndcg),
        "label_ms": _named(found.latency_ms()["total_ms"]),
        "stages_ms": {stage: _named(row) for stage, row in found.latency_ms().items()},
        **_refusing(found, figures.threshold),
        "agree": found.agreeing[0].value,
        "right_when_agree": found.agreeing[1].value,
        "baselines": {name: _baseline(each) for name, each in figures.baselines.items()},
        "coverage": [_point(found.keeping(share), found) for share in COVERAGES],
        "by_kind": _shares(found.by_kind, "top1"),
        "by_document": _shares(found.by_document, "top1"),
        "confusions": [
            {"asked": asked, "labelled": labelled, "count": count}
            for (asked, labelled), count in found.confusions.items()
        ],
        "sizes": [_size(each) for each in figures.sizes],
    }


def _refusing(found: Evaluation, threshold: float) -> dict[str, Any]:
    point, strangers = found.at_threshold(threshold), bool(found.unanswerable)
    return {
        "threshold": threshold,
        "kept": point.kept,
        "right_when_kept": point.right,
        "reject": point.refused if strangers else None,
        "reject_interval": _interval(found.refused(threshold)) if strangers else None,
        "reject_by_kind": _shares(found.refused_by_kind(threshold), "reject"),
        "auroc": found.auroc if strangers else None,
    }


def _baseline(each: Baseline) -> dict[str, Any]:
    pairs = each.ours
    return {
        "top1": each.top1.value,
        "top1_interval": _interval(each.top1),
        "only_ours": pairs.only_first if pairs else None,
        "only_theirs": pairs.only_second if pairs else None,
        "p": pairs.p if pairs else None,
    }


def _point(point: OperatingPoint, found: Evaluation) -> dict[str, float | None]:
    return {
        "threshold": point.threshold,
        "kept": point.kept,
        "right": point.right,
        "reject": point.refused if found.unanswerable else None,
    }


def _size(each: SizeFigures) -> dict[str, Any]:
    asked = bool(each.neighbours)
    return {
        "documents": each.size.documents,
        "chunks": each.size.chunks,
        "top1": each.evaluation.top(1).value,
        "search_ms": _named(each.evaluation.latency_ms()["search_ms"]),
        "hnsw_recall": each.recall,
        "exact_ms": _named(each.exact_ms) if asked else None,
        "hnsw_ms": _named(each.hnsw_ms) if asked else None,
    }


def _shares(shares: Mapping[str, Share], name: str) -> dict[str, dict[str, float]]:
    return {
        key: {name: share.value, "questions": share.count, "low": share.low, "high": share.high}
        for key, share in shares.items()
    }


def _interval(of: Share | Mean) -> list[float]:
    return [of.low, of.high]


def _named(row: dict[int, float]) -> dict[str, float]:
    return {f"p{at}": value for at, value in row.items()}
