"""The figures of an evaluation, as one JSON object and as tables for people."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass
from typing import Any

from rag_store.cli.output import aligned
from rag_store.document_index import Size
from rag_store.evaluation import PERCENTILES, Evaluation, Paired, QueryEstimate, percentiles
from rag_store.search import Neighbours

COVERAGES = (1.0, 0.95, 0.9, 0.8)
_PAIRS = 10
_SURE = 0.05


@dataclass(frozen=True, slots=True)
class Baseline:
    """Another way's top-1, and ours paired with it; no pairs for the oracle, which cannot lose."""

    top1: QueryEstimate
    ours: Paired | None


@dataclass(frozen=True, slots=True)
class SizeFigures:
    """The evaluation with so many documents, and the HNSW index against exact search there."""

    size: Size
    evaluation: Evaluation
    neighbours: tuple[Neighbours, ...] = ()

    @property
    def recall(self) -> float:
        """Of the index, the mean over queries."""
        found = [each.recall for each in self.neighbours] or [0.0]
        return sum(found) / len(found)

    @property
    def exact_ms(self) -> dict[str, float]:
        """Percentiles of comparing all chunks."""
        return percentiles([each.exact_ms for each in self.neighbours])

    @property
    def hnsw_ms(self) -> dict[str, float]:
        """Percentiles of asking the index."""
        return percentiles([each.hnsw_ms for each in self.neighbours])


@dataclass(frozen=True, slots=True)
class Figures:
    """One evaluation or, with distractors, several; the last and `baselines` have all documents."""

    sizes: tuple[SizeFigures, ...]
    threshold: float
    baselines: dict[str, Baseline]


def as_json(figures: Figures) -> dict[str, Any]:
    """Shares from 0 to 1; intervals are with 95 %; times in milliseconds."""
    found, size = figures.sizes[-1].evaluation, figures.sizes[-1].size
    stages = found.latency_ms()
    agree, right_when_agree = found.agreeing
    return {
        "questions": len(found.answerable),
        "unanswerable": len(found.unanswerable),
        "documents": size.documents,
        "chunks": size.chunks,
        "questions_indexed": size.questions,
        **_with_interval("top1", found.top(1)),
        **_with_interval("top3", found.top(3)),
        **_with_interval("mrr", found.mrr),
        **_with_interval("ndcg", found.ndcg),
        "label_ms": stages["total_ms"],
        "stages_ms": stages,
        **_refusing(found, figures.threshold),
        "agree": agree.value,
        "right_when_agree": right_when_agree.value,
        "baselines": {name: _baseline(each) for name, each in figures.baselines.items()},
        "coverage": [_point(found, share) for share in COVERAGES],
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
        **_with_interval("reject", found.refused(threshold) if strangers else None),
        "reject_by_kind": _shares(found.refused_by_kind(threshold), "reject"),
        "auroc": found.auroc if strangers else None,
    }


def _baseline(each: Baseline) -> dict[str, Any]:
    pairs = each.ours
    return {
        **_with_interval("top1", each.top1),
        "only_ours": pairs.only_first if pairs else None,
        "only_theirs": pairs.only_second if pairs else None,
        "p": pairs.p if pairs else None,
    }


def _point(found: Evaluation, kept: float) -> dict[str, float | None]:
    told = asdict(found.keeping(kept))
    refused = told.pop("refused")
    return {**told, "reject": refused if found.unanswerable else None}


def _size(each: SizeFigures) -> dict[str, Any]:
    return {
        "documents": each.size.documents,
        "chunks": each.size.chunks,
        "top1": each.evaluation.top(1).value,
        "search_ms": each.evaluation.latency_ms()["search_ms"],
        "hnsw_recall": each.recall,
        "exact_ms": each.exact_ms,
        "hnsw_ms": each.hnsw_ms,
    }


def _shares(shares: Mapping[str, QueryEstimate], name: str) -> dict[str, dict[str, float]]:
    return {
        key: {name: share.value, "questions": share.count, "low": share.low, "high": share.high}
        for key, share in shares.items()
    }


def _with_interval(name: str, of: QueryEstimate | None) -> dict[str, Any]:
    value, interval = (of.value, [of.low, of.high]) if of else (None, None)
    return {name: value, f"{name}_interval": interval}


def as_table(figures: Figures) -> str:
    """A block of lines for each side of it."""
    found, size = figures.sizes[-1].evaluation, figures.sizes[-1].size
    head = f"{len(found.answerable)} questions, {len(found.unanswerable)} without an answer, {size}"
    blocks = [
        _accuracy_lines(found),
        _baseline_lines(figures.baselines, found.top(1)),
        _share_lines(("kind", "top-1"), found.by_kind),
        _refusing_lines(found, figures.threshold),
        _time_lines(found),
        _size_lines(figures.sizes),
        _confusion_lines(found),
    ]
    return "\n\n".join([head, *("\n".join(block) for block in map(list, blocks) if block)])


def _accuracy_lines(found: Evaluation) -> Iterator[str]:
    figures: dict[str, QueryEstimate] = {
        "top-1": found.top(1),
        "top-3": found.top(3),
        "MRR@10": found.mrr,
        "nDCG@10": found.ndcg,
    }
    rows = [(name, *_share(each)) for name, each in figures.items()]
    return aligned([("", "", "95 % interval"), *rows])


def _baseline_lines(baselines: dict[str, Baseline], ours: QueryEstimate) -> Iterator[str]:
    head = ("top-1 of", "", "95 % interval", "only ours right", "only theirs", "McNemar's p")
    rows = [(name, *_share(each.top1), *_paired(each, ours)) for name, each in baselines.items()]
    return aligned([head, ("this library", *_share(ours), "", "", ""), *rows])


def _paired(each: Baseline, ours: QueryEstimate) -> tuple[str, str, str]:
    if each.ours is None:
        return "", "", ""
    pairs, word = each.ours, "above" if ours.value > each.top1.value else "below"
    verdict = f"significantly {word}" if pairs.p < _SURE else "not significant"
    p = "< 0.001" if pairs.p < 0.001 else f"{pairs.p:.3f}"
    return str(pairs.only_first), str(pairs.only_second), f"{p}, {verdict}"


def _share_lines(head: tuple[str, str], shares: Mapping[str, QueryEstimate]) -> Iterator[str]:
    rows = [(name, *_share(each), str(each.count)) for name, each in shares.items()]
    return aligned([(*head, "95 % interval", "questions"), *rows] if rows else [])


def _refusing_lines(found: Evaluation, threshold: float) -> Iterator[str]:
    if found.unanswerable:
        strangers = {**found.refused_by_kind(threshold), "all of them": found.refused(threshold)}
        yield from _share_lines(("strangers", "refused"), strangers)
        yield f"a question scores above a stranger with a chance of {found.auroc:.3f} (AUROC)"
        yield ""
    points = {"as set": found.at_threshold(threshold)}
    points |= {f"keeping {share:.0%}": found.keeping(share) for share in COVERAGES}
    head = ("threshold", "", "labelled", "right of these", "strangers refused")
    lines = [(name, *(f"{value:.3f}" for value in astuple(at))) for name, at in points.items()]
    columns = len(head) if found.unanswerable else len(head) - 1
    yield from aligned(line[:columns] for line in (head, *lines))


def _time_lines(found: Evaluation) -> Iterator[str]:
    lines = [
        (stage.removesuffix("_ms"), *(f"{value:.2f}" for value in row.values()))
        for stage, row in found.latency_ms().items()
        if any(row.values())
    ]
    return aligned([("ms of a label", *(f"p{at}" for at in PERCENTILES)), *lines])


def _size_lines(sizes: Sequence[SizeFigures]) -> Iterator[str]:
    head = ["documents", "chunks", "top-1", "HNSW recall@10"]
    ends = ("p50", "p99")
    rows = [head + [f"{way} {at} ms" for way in ("exact", "HNSW") for at in ends]]
    for each in sizes:
        times = [f"{way[at]:.2f}" for way in (each.exact_ms, each.hnsw_ms) for at in ends]
        shares = [f"{share:.3f}" for share in (each.evaluation.top(1).value, each.recall)]
        rows.append([str(each.size.documents), str(each.size.chunks), *shares, *times])
    return aligned(rows)


def _confusion_lines(found: Evaluation) -> Iterator[str]:
    pairs = list(found.confusions.items())
    rows = [(str(count), asked, labelled) for (asked, labelled), count in pairs[:_PAIRS]]
    yield from aligned([("wrong", "asked about", "labelled"), *rows] if rows else [])
    if len(pairs) > _PAIRS:
        yield f"and {len(pairs) - _PAIRS} other pairs, see --json"


def _share(of: QueryEstimate) -> tuple[str, str]:
    return f"{of.value:.3f}", f"{of.low:.3f} to {of.high:.3f}"
