"""Libraries of made documents, kept on disk."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

from rag_corpus import made_documents
from rag_made_embedder import MadeEmbedder
from scheduler_engine_run import say

from rag_store.document_index import DocumentIndex
from rag_store.documents import Document
from rag_store.embedders import EmbedderSpec, open_embedder
from rag_store.settings import Settings


async def make_libraries(folder: Path, sizes: Sequence[int]) -> dict[int, Path]:
    """Their folders by chunks. What is there is kept where it still fits. Raises RagError."""
    paths = {chunks: folder / f"{chunks}-chunks" for chunks in sizes}
    for chunks, path in paths.items():
        # A thread, so that an interruption is heard.
        await asyncio.to_thread(_fill, path, made_documents(chunks))
    return paths


def _fill(path: Path, documents: Sequence[Document]) -> None:
    embedder = open_embedder(EmbedderSpec())
    index = DocumentIndex(Settings(path=path, renew=True), embedder)
    held = {entry.digest for entry in index.entries.values()}
    index.store.close()
    if held != {document.digest for document in documents}:
        say(f"making {path.name}")
        made = MadeEmbedder(embedder, documents)
        index = DocumentIndex(Settings(path=path, rebuild=True), made)
        index.write(documents, None)
        index.store.close()
