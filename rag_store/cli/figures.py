"""An evaluation as a table for people and as one JSON object."""

from dataclasses import dataclass
from typing import Any

from rag_store.evaluation import Evaluation, Share
from rag_store.library import Size


@dataclass(frozen=True, slots=True)
class SizeFigures:
    """The evaluation with so many documents."""

    size: Size
    evaluation: Evaluation


@dataclass(frozen=True, slots=True)
class Figures:
    """One evaluation or, with distractors, several; the last is with all documents.

    `baselines` are top-1 shares with all documents.
    """

    sizes: tuple[SizeFigures, ...]
    threshold: float
    baselines: dict[str, Share]

    @property
    def all_documents(self) -> SizeFigures:
        """The evaluation that counts."""
        return self.sizes[-1]


def as_json(figures: Figures) -> dict[str, Any]:
    """Shares from 0 to 1; intervals are Wilson's with 95 %; times in milliseconds."""
    found, size = figures.all_documents.evaluation, figures.all_documents.size
    point = found.at_threshold(figures.threshold)
    strangers = bool(found.unanswerable)
    return {
        "questions": len(found.answerable),
        "unanswerable": len(found.unanswerable),
        "documents": size.documents,
        "chunks": size.chunks,
        "top1": found.top(1).value,
        "top1_interval": _interval(found.top(1)),
        "top3": found.top(3).value,
        "top3_interval": _interval(found.top(3)),
        "mrr": found.mrr,
        "ndcg": found.ndcg,
        "label_ms": _named(found.latency_ms()["total_ms"]),
        "stages_ms": {stage: _named(row) for stage, row in found.latency_ms().items()},
        "threshold": figures.threshold,
        "kept": point.kept,
        "right_when_kept": point.right,
        "reject": point.refused if strangers else None,
        "auroc": found.auroc if strangers else None,
        "agree": found.agreeing[0].value,
        "right_when_agree": found.agreeing[1].value,
        "baselines": {
            name: {"top1": share.value, "top1_interval": _interval(share)}
            for name, share in figures.baselines.items()
        },
        "coverage": [_kept(found, share) for share in (1.0, 0.95, 0.9, 0.8)],
        "by_document": {name: _share(share) for name, share in _by_document(found).items()},
        "confusions": [
            {"asked": asked, "labelled": labelled, "count": count}
            for (asked, labelled), count in found.confusions.items()
        ],
        "sizes": [_size(each) for each in figures.sizes],
    }


def as_table(figures: Figures) -> str:
    """A line for each figure."""
    found, size = figures.all_documents.evaluation, figures.all_documents.size
    point = found.at_threshold(figures.threshold)
    rows = [
        f"{len(found.answerable)} questions, {len(found.unanswerable)} without an answer,"
        f" {size.documents} documents in {size.chunks} chunks",
        "",
        f"top-1           {_text(found.top(1))}",
        f"top-3           {_text(found.top(3))}",
        f"MRR, nDCG@10    {found.mrr:.3f}, {found.ndcg:.3f}",
        f"threshold       {figures.threshold:.3f}: labels {point.kept:.1%} of the questions,"
        f" {point.right:.1%} of those right",
    ]
    if found.unanswerable:
        rows.append(f"strangers       {point.refused:.1%} refused; AUROC {found.auroc:.3f}")
    for stage, row in found.latency_ms().items():
        times = ", ".join(f"p{at} {value:.2f}" for at, value in row.items())
        rows.append(f"{stage:16}{times}")
    rows += ["", *(f"{name:16}{_text(share)}" for name, share in figures.baselines.items())]
    if len(figures.sizes) > 1:
        rows += ["", *map(_size_line, figures.sizes)]
    rows += ["", *_confusions(found)] if found.confusions else []
    return "\n".join(rows)


def _confusions(found: Evaluation) -> list[str]:
    pairs = list(found.confusions.items())[:10]
    return [f"{count:4} x asked {pair[0]}, labelled {pair[1]}" for pair, count in pairs]


def _by_document(found: Evaluation) -> dict[str, Share]:
    hits: dict[str, list[bool]] = {}
    for each in found.answerable:
        hits.setdefault(each.query.doc_ids[0], []).append(each.right)
    return {doc_id: Share.of(hits[doc_id]) for doc_id in sorted(hits)}


def _kept(found: Evaluation, share: float) -> dict[str, float | None]:
    point = found.keeping(share)
    refused = point.refused if found.unanswerable else None
    return {
        "threshold": point.threshold,
        "kept": point.kept,
        "right": point.right,
        "reject": refused,
    }


def _size(each: SizeFigures) -> dict[str, Any]:
    return {
        "documents": each.size.documents,
        "chunks": each.size.chunks,
        "top1": each.evaluation.top(1).value,
        "search_ms": _named(each.evaluation.latency_ms()["search_ms"]),
    }


def _size_line(each: SizeFigures) -> str:
    p95 = each.evaluation.latency_ms()["search_ms"][95]
    return (
        f"{each.size.documents:6} documents, {each.size.chunks:6} chunks:"
        f" top-1 {each.evaluation.top(1).value:.3f}, search p95 {p95:.2f} ms"
    )


def _share(share: Share) -> dict[str, float]:
    return {"top1": share.value, "questions": share.count}


def _interval(share: Share) -> list[float]:
    return [share.low, share.high]


def _text(share: Share) -> str:
    return f"{share.value:.3f} [{share.low:.3f}, {share.high:.3f}]"


def _named(row: dict[int, float]) -> dict[str, float]:
    return {f"p{at}": value for at, value in row.items()}
