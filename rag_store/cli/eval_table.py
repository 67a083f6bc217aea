"""An evaluation as tables for people."""

from collections.abc import Iterable, Iterator, Sequence

from rag_store.cli.baselines import Baseline
from rag_store.cli.figures import COVERAGES, Figures, SizeFigures
from rag_store.evaluation import PERCENTILES, Evaluation, Mean, Share

_PAIRS = 10
_TIMES = [f"p{at}" for at in PERCENTILES]
_SURE = 0.05


def as_table(figures: Figures) -> str:
    """A block of lines for each side of it."""
    found, size = figures.all_documents.evaluation, figures.all_documents.size
    head = f"{len(found.answerable)} questions, {len(found.unanswerable)} without an answer, {size}"
    blocks = [
        _accuracy(found),
        _baselines(figures.baselines, found.top(1)),
        _by_kind(found),
        _refusing(found, figures.threshold),
        _times(found),
        _sizes(figures.sizes),
        _confusions(found),
    ]
    return "\n\n".join([head, *("\n".join(block) for block in map(list, blocks) if block)])


def _accuracy(found: Evaluation) -> Iterator[str]:
    figures: dict[str, Share | Mean] = {
        "top-1": found.top(1),
        "top-3": found.top(3),
        "MRR@10": found.mrr,
        "nDCG@10": found.ndcg,
    }
    rows = [(name, *_share(each)) for name, each in figures.items()]
    return _columns([("", "", "95 % interval"), *rows])


def _baselines(baselines: dict[str, Baseline], ours: Share) -> Iterator[str]:
    head = ("top-1 of", "", "95 % interval", "only ours right", "only theirs", "McNemar's p")
    rows = [(name, *_share(each.top1), *_paired(each, ours)) for name, each in baselines.items()]
    return _columns([head, ("this library", *_share(ours), "", "", ""), *rows])


def _paired(each: Baseline, ours: Share) -> tuple[str, str, str]:
    if each.ours is None:
        return "", "", ""
    pairs, word = each.ours, "above" if ours.value > each.top1.value else "below"
    verdict = f"significantly {word}" if pairs.p < _SURE else "not significant"
    p = "< 0.001" if pairs.p < 0.001 else f"{pairs.p:.3f}"
    return str(pairs.only_first), str(pairs.only_second), f"{p}, {verdict}"


def _by_kind(found: Evaluation) -> Iterator[str]:
    rows = [(name, *_share(each), str(each.count)) for name, each in found.by_kind.items()]
    return _columns([("kind", "top-1", "95 % interval", "questions"), *rows] if rows else [])


def _refusing(found: Evaluation, threshold: float) -> Iterator[str]:
    strangers = {**found.refused_by_kind(threshold), "all of them": found.refused(threshold)}
    if found.unanswerable:
        rows = [(name, *_share(each), str(each.count)) for name, each in strangers.items()]
        yield from _columns([("strangers", "refused", "95 % interval", "questions"), *rows])
        yield f"a question scores above a stranger with a chance of {found.auroc:.3f} (AUROC)"
        yield ""
    points = [("as set", found.at_threshold(threshold))]
    points += [(f"keeping {share:.0%}", found.keeping(share)) for share in COVERAGES]
    head = ("threshold", "", "labelled", "right of these", "strangers refused")
    refused = bool(found.unanswerable)
    yield from _columns(
        [head[: 4 + refused]]
        + [
            (name, *_cells(at.threshold, at.kept, at.right, at.refused)[: 3 + refused])
            for name, at in points
        ]
    )


def _times(found: Evaluation) -> Iterator[str]:
    rows = found.latency_ms().items()
    lines = [(stage.removesuffix("_ms"), *_ms(row)) for stage, row in rows if any(row.values())]
    return _columns([("ms of a label", *_TIMES), *lines])


def _sizes(sizes: Sequence[SizeFigures]) -> Iterator[str]:
    head = ("documents", "chunks", "top-1", "HNSW recall@10")
    times = [f"{way} {at} ms" for way in ("exact", "HNSW") for at in ("p50", "p99")]
    return _columns([(*head, *times), *map(_size, sizes)])


def _size(each: SizeFigures) -> tuple[str, ...]:
    exact, hnsw = each.exact_ms, each.hnsw_ms
    recall = "" if each.recall is None else f"{each.recall:.3f}"
    times = (exact[50], exact[99], hnsw[50], hnsw[99])
    counts = str(each.size.documents), str(each.size.chunks)
    return (*counts, *_cells(each.evaluation.top(1).value), recall, *(f"{at:.2f}" for at in times))


def _confusions(found: Evaluation) -> Iterator[str]:
    pairs = list(found.confusions.items())
    rows = [(str(count), asked, labelled) for (asked, labelled), count in pairs[:_PAIRS]]
    yield from _columns([("wrong", "asked about", "labelled"), *rows] if rows else [])
    if len(pairs) > _PAIRS:
        yield f"and {len(pairs) - _PAIRS} other pairs, see --json"


def _share(of: Share | Mean) -> tuple[str, str]:
    return f"{of.value:.3f}", f"{of.low:.3f} to {of.high:.3f}"


def _cells(*values: float) -> tuple[str, ...]:
    return tuple(f"{value:.3f}" for value in values)


def _ms(row: dict[int, float]) -> tuple[str, ...]:
    return tuple(f"{value:.2f}" for value in row.values())


def _columns(rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """The rows with their cells aligned, two blanks between them."""
    cells = [list(row) for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for row in cells:
        padded = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        yield "  ".join(padded).rstrip()
