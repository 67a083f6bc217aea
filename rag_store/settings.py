"""How a library is opened, as a command line says it."""

import re
from dataclasses import dataclass, field
from pathlib import Path

from rag_store.chunking import Chunker
from rag_store.embedders import EmbedderSpec
from rag_store.errors import RagUsageError
from rag_store.reranker import RerankerSpec

HYBRID = "hybrid"
RETRIEVERS = (HYBRID, "dense", "bm25")
CANDIDATES_EACH = 6
"""So many documents are candidates by their vectors, and as many by their words."""

_COLLECTION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,61}[A-Za-z0-9]")


@dataclass(frozen=True, slots=True)
class Settings:
    """Where the chunks lie, how they are made and how they are searched.

    With `chroma_url` the chunks lie in a Chroma server, and in `path` only the word states. Up to
    `exact_chunks` chunks and questions every one is compared, above that Chroma's HNSW index is
    asked. The embeddings of the latest `kept_queries` texts are kept, so that asking again costs
    none. Without `create` a folder or collection that is not there is refused, and not made.
    """

    path: Path = Path(".kvswarm/rag")
    chroma_url: str = ""
    collection: str = "default"
    embedder: EmbedderSpec = field(default_factory=EmbedderSpec)
    chunker: Chunker = field(default_factory=Chunker)
    retriever: str = HYBRID
    candidates: int = 5
    exact_chunks: int = 30_000
    threads: int = 4
    max_query_chars: int = 20_000
    kept_queries: int = 4096
    reranker: RerankerSpec = field(default_factory=RerankerSpec)
    create: bool = True

    def __post_init__(self) -> None:
        if self.retriever not in RETRIEVERS:
            raise RagUsageError(
                f"retriever {self.retriever!r} is unknown: choose one of {', '.join(RETRIEVERS)}"
            )
        if not _COLLECTION.fullmatch(self.collection):
            raise RagUsageError(
                f"collection {self.collection!r}: use 3 to 63 letters, digits, '.', '_' and '-',"
                " with a letter or digit at both ends"
            )
        for name in ("candidates", "threads", "max_query_chars", "kept_queries"):
            least, value = (0 if name == "kept_queries" else 1), getattr(self, name)
            if value < least:
                raise RagUsageError(f"{name} is {value}: give at least {least}")
        most = CANDIDATES_EACH * (2 if self.retriever == HYBRID else 1)
        if self.reranker.url and self.reranker.documents > most:
            raise RagUsageError(
                f"--rerank is {self.reranker.documents}: with --retriever {self.retriever}"
                f" a question has at most {most} candidates"
            )

    @property
    def place(self) -> str:
        """Where the chunks lie."""
        return self.chroma_url or str(self.path)
