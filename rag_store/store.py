"""Chunks and their vectors in a Chroma collection, embedded in this process or on a server.

Chroma keeps an old row silently on `add`, keeps a stored metric silently on `get_or_create`, and
takes NaN. So rows are only upserted, collections are created or opened but never both in one call,
and vectors are checked before they get here.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import numpy.typing as npt

from rag_store.chunking import passage
from rag_store.embedders import Vectors
from rag_store.errors import FingerprintError, RagError, RagUsageError, StoreError
from rag_store.fingerprint import Fingerprint
from rag_store.folder import locked
from rag_store.model_server import line_of
from rag_store.settings import Settings

# Chroma refuses more than 5461 rows at once.
BATCH_ROWS = 4096
# Chroma's own choices lose half of the true neighbours among 10,000; ef_search is read only when
# the collection is created.
HNSW = {"space": "cosine", "ef_construction": 400, "max_neighbors": 48, "ef_search": 400}
_FINGERPRINT = "kvswarm_fingerprint"


@dataclass(frozen=True, slots=True)
class Row:
    """One chunk or question as it is stored.

    `digest` is its document's, `count` how many rows that has. The questions come after the
    chunks.
    """

    doc_id: str
    title: str
    digest: str
    ordinal: int
    count: int
    start: int
    text: str
    written_ns: int
    is_question: bool = False

    @property
    def row_id(self) -> str:
        """Another version of a document has other ids, so it never overwrites the one before."""
        return f"{self.doc_id}#{self.digest[:16]}#{self.ordinal}"

    @property
    def passage(self) -> str:
        """What is embedded and indexed for it."""
        return self.text if self.is_question else passage(self.title, self.text)

    def metadata(self) -> dict[str, str | int]:
        """All but the text, as Chroma stores it."""
        return {
            "doc_id": self.doc_id,
            "title": self.title,
            "digest": self.digest,
            "ordinal": self.ordinal,
            "count": self.count,
            "start": self.start,
            "written_ns": self.written_ns,
            "is_question": self.is_question,
        }


class ChunkStore:
    """One collection. Safe to call from several threads; every call may block on the disk."""

    def __init__(self, settings: Settings, fingerprint: Fingerprint, rebuild: bool = False) -> None:
        """Open the collection, or create it. With `rebuild` what is there is dropped.

        Raises RagUsageError, StoreError, and FingerprintError where it was made with something
        else.
        """
        self._lock = None if settings.chroma_url else locked(settings.path, settings.create)
        try:
            with _translated("cannot open"):
                self._client = _client(settings)
                self._collection = self._open(settings, fingerprint, rebuild)
        except RagError:
            self.close()
            raise

    def close(self) -> None:
        """Let another process open the same path. Idempotent."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def write(self, rows: Sequence[Row], vectors: Vectors) -> None:
        """Add the rows, or overwrite those with the same id. Raises StoreError."""
        for start in range(0, len(rows), BATCH_ROWS):
            part = slice(start, start + BATCH_ROWS)
            with _translated("cannot write to"):
                self._collection.upsert(
                    ids=[row.row_id for row in rows[part]],
                    embeddings=vectors[part],
                    documents=[row.text for row in rows[part]],
                    metadatas=[row.metadata() for row in rows[part]],
                )

    def delete(self, row_ids: Sequence[str]) -> None:
        """Remove the rows; unknown ids are ignored. Raises StoreError."""
        for start in range(0, len(row_ids), BATCH_ROWS):
            with _translated("cannot delete from"):
                self._collection.delete(ids=list(row_ids[start : start + BATCH_ROWS]))

    def pages(self) -> Iterator[tuple[list[Row], Vectors]]:
        """All rows and their vectors, a batch at a time. Raises StoreError."""
        wanted = ["documents", "metadatas", "embeddings"]
        offset = 0
        while True:
            with _translated("cannot read from"):
                page = self._collection.get(include=wanted, limit=BATCH_ROWS, offset=offset)
            if not page["ids"]:
                return
            rows = [
                Row(**metadata, text=text)
                for metadata, text in zip(page["metadatas"], page["documents"], strict=True)
            ]
            yield rows, np.asarray(page["embeddings"], np.float32)
            offset += len(rows)

    def nearest(
        self, vector: Vectors, count: int, questions: bool = True
    ) -> tuple[list[str], npt.NDArray[np.float32]]:
        """Ids of the rows nearest to the vector of shape [dim], by HNSW, and their cosines.

        Without `questions` they are chunks, as many as with them. Raises StoreError.
        """
        where = None if questions else {"is_question": False}
        with _translated("cannot search"):
            found = self._collection.query(
                query_embeddings=[vector], n_results=count, include=["distances"], where=where
            )
        return found["ids"][0], 1 - np.asarray(found["distances"][0], np.float32)

    def note(self, name: str) -> str | None:
        """What `set_note` kept under the name. Raises StoreError."""
        value = (self._collection.metadata or {}).get(f"kvswarm_{name}")
        return value if isinstance(value, str) else None

    def set_note(self, name: str, value: str) -> None:
        """Keep a text beside the collection, in its metadata. Raises StoreError."""
        with _translated("cannot write to"):
            # Chroma replaces all metadata by what it is given.
            kept = {**(self._collection.metadata or {}), f"kvswarm_{name}": value}
            self._collection.modify(metadata=kept)

    def ping(self) -> None:
        """Raise StoreError where Chroma does not answer."""
        with _translated("cannot reach"):
            self._collection.count()

    def _open(self, settings: Settings, fingerprint: Fingerprint, rebuild: bool) -> Any:
        name = settings.collection
        there = name in {collection.name for collection in self._client.list_collections()}
        if there and rebuild:
            self._client.delete_collection(name)
        if not there or rebuild:
            return self._created(settings, fingerprint)
        collection = self._client.get_collection(name, embedding_function=None)
        fingerprint.check((collection.metadata or {}).get(_FINGERPRINT), name)
        return _with_cosine(collection)

    def _created(self, settings: Settings, fingerprint: Fingerprint) -> Any:
        if not settings.create:
            raise RagUsageError(
                f"there is no collection {settings.collection!r} in {settings.place}: name another"
                " with --collection, or make it with kvswarm rag index"
            )
        return self._client.create_collection(
            settings.collection,
            configuration={"hnsw": HNSW},
            metadata={_FINGERPRINT: fingerprint.as_json()},
            embedding_function=None,
        )


def _with_cosine(collection: Any) -> Any:
    space = (collection.configuration_json.get("hnsw") or {}).get("space")
    if space != HNSW["space"]:
        raise FingerprintError(
            f"the collection {collection.name!r} measures by {space}, not cosine:"
            " make it anew with kvswarm rag index --rebuild"
        )
    return collection


def _client(settings: Settings) -> Any:
    try:
        import chromadb
        from chromadb.config import Settings as ChromaSettings
    except ImportError as error:
        raise StoreError("Chroma is not installed: pip install 'kvswarm[rag]'") from error
    quiet = ChromaSettings(anonymized_telemetry=False)
    if not settings.chroma_url:
        return chromadb.PersistentClient(str(settings.path), quiet)
    host, port, secure = _address(settings.chroma_url)
    try:
        return chromadb.HttpClient(host, port, ssl=secure, settings=quiet)
    # Whatever answers there; the constructor asks who we are and for our database.
    except Exception as error:
        raise StoreError(
            f"cannot open Chroma: no Chroma server answers at {settings.chroma_url}"
            f" ({_reason(error)}): start one there, or name another --chroma-url"
        ) from error


def _address(chroma_url: str) -> tuple[str, int, bool]:
    if "@" in chroma_url:  # it would stand in errors, and is not sent
        raise RagUsageError("--chroma-url holds a password: give http://host:port")
    try:
        url = urlsplit(chroma_url)
        host, port = url.hostname, url.port
    except ValueError:
        host = None
    if not host or url.scheme not in ("http", "https"):
        raise RagUsageError(f"--chroma-url is {chroma_url!r}: give http://host:port")
    secure = url.scheme == "https"
    return host, port or (443 if secure else 8000), secure


@contextmanager
def _translated(action: str) -> Iterator[None]:
    try:
        yield
    except RagError:
        raise
    # Chroma's errors have no common base: they come from Rust, httpx, sqlite and itself.
    except Exception as error:
        raise StoreError(f"{action} Chroma: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    """What it says, in one line; Chroma keeps a server's whole page, or nothing of it."""
    return line_of(str(error).strip().split("\n")[0]) or type(error).__name__
