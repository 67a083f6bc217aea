"""What the default has to beat: the same questions asked of simpler libraries."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rag_store.chunking import Chunker
from rag_store.documents import Document, Query
from rag_store.evaluation import Share, evaluate
from rag_store.library import open_library
from rag_store.settings import Settings

# No document has so many: the chunk is the document, of which an embedder may cut the end off.
_WHOLE = Chunker(size_tokens=1_000_000_000, overlap_tokens=0)


async def baselines(
    settings: Settings, folder: Path, documents: Sequence[Document], queries: Sequence[Query]
) -> dict[str, Share]:
    """Top-1 of one vector a document, of chunk vectors alone, of BM25 alone, and the best possible.

    Libraries are made in `folder`, which must be empty. Raises as `open_library`.
    """
    local = replace(settings, chroma_url="", collection="baseline")
    chunks = replace(local, path=folder / "chunks")
    arms = {
        "whole_document": replace(local, path=folder / "whole", chunker=_WHOLE, retriever="dense"),
        "dense": replace(chunks, retriever="dense"),
        "bm25": replace(chunks, retriever="bm25"),
    }
    asked = [query for query in queries if query.doc_ids]
    found = {name: await _top1(arm, documents, asked) for name, arm in arms.items()}
    return {**found, "oracle": Share.of([True] * len(asked))}


async def _top1(
    settings: Settings, documents: Sequence[Document], queries: Sequence[Query]
) -> Share:
    async with open_library(settings) as library:
        await library.ingest(documents)
        return (await evaluate(library, queries)).top(1)
