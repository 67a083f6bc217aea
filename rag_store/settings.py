"""How a library is opened, and what a collection was made with: no vectors of two makes meet."""

import json
import re
from dataclasses import asdict, dataclass, field
from pathlib import Path

from rag_store.documents import Chunker
from rag_store.embedders import EmbedderSpec
from rag_store.embedders.protocol import Identity
from rag_store.errors import FingerprintError, RagUsageError
from rag_store.reranker import RerankerSpec

SCHEMA = 5
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
    none. Without `create` a folder or collection that is not there is refused, and not made. What a
    collection holds is dropped with `rebuild`, and with `renew` where other settings made it.
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
    rebuild: bool = False
    renew: bool = False

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


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """Embedder, chunking and layout; two collections with equal ones are interchangeable."""

    embedder: str
    weights: str
    dim: int
    pooling: str
    chunk_tokens: int
    overlap_tokens: int
    schema: int = SCHEMA

    @classmethod
    def of(cls, identity: Identity, chunker: Chunker) -> "Fingerprint":
        """The fingerprint of what these two will make."""
        cut = chunker.size_tokens, chunker.overlap_tokens
        return cls(identity.name, identity.weights, identity.dim, identity.pooling, *cut)

    def as_json(self) -> str:
        """One line of JSON, as kept in the collection's metadata."""
        return json.dumps(asdict(self), sort_keys=True)

    def check(self, stored: str, collection: str) -> None:
        """Raise FingerprintError where a collection has another make's `as_json`."""
        if stored == self.as_json():
            return
        theirs = json.loads(stored)
        differences = ", ".join(
            f"{name} {_short(theirs.get(name))}, not {_short(value)}"
            for name, value in asdict(self).items()
            if theirs.get(name) != value
        )
        other = f"with other settings ({differences}): use those,"
        if theirs.get("schema") != SCHEMA:
            other = "by another version of kvswarm:"
        raise FingerprintError(
            f"the collection {collection!r} was made {other} choose another --collection,"
            " or make it anew with kvswarm rag index --rebuild"
        )


def require_ours(stored: object, collection: str) -> str:
    """A collection's fingerprint. Raises FingerprintError for the collection of others."""
    if isinstance(stored, str):
        return stored
    raise FingerprintError(
        f"the collection {collection!r} was not made by kvswarm:"
        " choose another name with --collection"
    )


def _short(value: object) -> str:
    text = str(value)
    return f"{text[:12]}…" if len(text) == 64 else text
