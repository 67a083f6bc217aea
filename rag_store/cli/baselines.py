"""What the default has to beat: the same questions asked of simpler libraries."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rag_store.chunking import Chunker
from rag_store.documents import Document, Query
from rag_store.evaluation import Evaluation, Paired, Share, evaluate
from rag_store.library import open_library
from rag_store.reranker import RerankerSpec
from rag_store.settings import Settings

# No document has so many: the chunk is the document, of which an embedder may cut the end off.
_WHOLE = Chunker(size_tokens=1_000_000_000, overlap_tokens=0)


@dataclass(frozen=True, slots=True)
class Baseline:
    """Another way's top-1, and ours paired with it; no pairs for the oracle, which cannot lose."""

    top1: Share
    ours: Paired | None


async def baselines(
    settings: Settings, folder: Path, documents: Sequence[Document], ours: Evaluation
) -> dict[str, Baseline]:
    """One vector a document; chunk vectors alone, BM25 alone, the best possible.

    Where a reranker is asked, also ours without it.

    `settings` are of the library that gave `ours`, which must be closed and hold `documents`;
    `folder` must be empty. Raises as `open_library`.
    """
    unread = replace(settings, reranker=RerankerSpec())
    whole = replace(unread, path=folder, chroma_url="", chunker=_WHOLE, retriever="dense")
    arms: dict[str, tuple[Settings, Sequence[Document]]] = {
        "whole_document": (whole, [replace(each, questions=()) for each in documents]),
        "dense": (replace(unread, retriever="dense"), ()),
        "bm25": (replace(unread, retriever="bm25"), ()),
    }
    if settings.reranker.url:
        arms["without_reranking"] = unread, ()
    queries = [each.query for each in ours.answerable]
    found = {name: await _evaluate(*arm, queries) for name, arm in arms.items()}
    rows = {name: Baseline(each.top(1), ours.against(each)) for name, each in found.items()}
    return {**rows, "oracle": Baseline(Share.of([True] * len(queries)), None)}


async def _evaluate(
    settings: Settings, documents: Sequence[Document], queries: Sequence[Query]
) -> Evaluation:
    async with open_library(replace(settings, create=bool(documents))) as library:
        if documents:
            await library.ingest(documents)
        return await evaluate(library, queries)
