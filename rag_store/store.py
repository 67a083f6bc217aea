"""Chunks and their vectors in a Chroma collection, and which documents its rows are.

Chroma keeps an old row silently on `add`, keeps a stored metric silently on `get_or_create`, and
takes NaN. So rows are only upserted, collections are created or opened but never both in one call,
and vectors are checked before they get here.
"""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import chain
from typing import Any, get_type_hints

import numpy as np
import numpy.typing as npt

from rag_store.chroma import open_client, open_folder, reason_of, require_answer
from rag_store.documents import Chunk, Document, join, passage, sentences
from rag_store.embedders.protocol import Vectors
from rag_store.errors import FingerprintError, RagError, RagUsageError, StoreError
from rag_store.settings import Fingerprint, Settings, require_ours
from rag_store.state_files import WordStates

# Chroma refuses more than 5461 rows at once.
BATCH_ROWS = 4096
_BATCH_DOCUMENTS = 256
_NEAREST_ROWS = 400
# Longer than any process takes from cutting a document to storing the last of its rows.
ABANDONED_NS = 3600 * 10**9
# Chroma's own choices lose half of the true neighbours among 10,000; ef_search is read only when
# the collection is created.
HNSW = {"space": "cosine", "ef_construction": 400, "max_neighbors": 48, "ef_search": 400}
_FINGERPRINT = "kvswarm_fingerprint"


@dataclass(frozen=True, slots=True)
class Row:
    """A chunk, or a question behind them, of a document with `digest` and `count` rows."""

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

    @classmethod
    def parsed(cls, row_id: str, metadata: Mapping[str, Any] | None, text: str | None) -> "Row":
        """From what Chroma keeps. Raises StoreError for a damaged row, and for one of others."""
        kept: dict[str, Any] = {**(metadata or {}), "text": text}
        is_ours = kept.keys() == _KINDS.keys()
        if not is_ours or not all(isinstance(kept[name], of) for name, of in _KINDS.items()):
            raise StoreError(
                f"Chroma's row {row_id!a} is damaged, or was not written by kvswarm: delete it, or"
                " make the collection anew with kvswarm rag index --rebuild"
            )
        return cls(**kept)

    @staticmethod
    def doc_id_of(row_id: str) -> str:
        """The document of the row with this id."""
        return row_id.rsplit("#", 2)[0]

    @property
    def passage(self) -> str:
        """What is embedded and indexed for it."""
        return self.text if self.is_question else passage(self.title, self.text)

    def metadata(self) -> dict[str, str | int]:
        """All but the text, as Chroma stores it."""
        return {name: value for name, value in asdict(self).items() if name != "text"}


_KINDS = get_type_hints(Row)


@dataclass(frozen=True)
class Entry:
    """A document's rows in order and their vectors of shape [rows, dim]; chunks, then questions.

    `states` are those of its sentences, then of its questions; None where the embedder gives none.
    """

    rows: tuple[Row, ...]
    vectors: Vectors
    states: WordStates | None = None

    @property
    def doc_id(self) -> str:
        return self.rows[0].doc_id

    @property
    def title(self) -> str:
        return self.rows[0].title

    @property
    def digest(self) -> str:
        return self.rows[0].digest

    @property
    def row_ids(self) -> list[str]:
        return [row.row_id for row in self.rows]

    @property
    def is_whole(self) -> bool:
        """Whether no row is missing, or of another version."""
        ordinals = [row.ordinal for row in self.rows]
        return ordinals == list(range(self.rows[0].count)) and self.document().digest == self.digest

    @cached_property
    def chunk_count(self) -> int:
        """How many of the rows are chunks; the others are questions."""
        return sum(not row.is_question for row in self.rows)

    @cached_property
    def sentences(self) -> tuple[str, ...]:
        """Those of its text."""
        return sentences(self.document().text)

    @property
    def state_count(self) -> int:
        """How many sentences and questions there are."""
        return len(self.sentences) + len(self.rows) - self.chunk_count

    @property
    def sentence_passages(self) -> Iterator[str]:
        """What is embedded for the states of each sentence."""
        return (passage(self.title, sentence) for sentence in self.sentences)

    @property
    def state_passages(self) -> Iterator[str]:
        """What is embedded for the states of each sentence, and then of each question."""
        return chain(self.sentence_passages, (row.text for row in self.rows[self.chunk_count :]))

    @cached_property
    def text_digest(self) -> str:
        """As its document has it."""
        return self.document().text_digest

    def document(self) -> Document:
        """Put together from its rows."""
        told, asked = self.rows[: self.chunk_count], self.rows[self.chunk_count :]
        text = join(tuple(Chunk(row.start, row.text) for row in told))
        return Document(self.doc_id, self.title, text, tuple(row.text for row in asked))


def sort_out(rows: Iterable[tuple[Row, Vectors]]) -> tuple[dict[str, Entry], list[str]]:
    """The whole documents by id, and the ids of the rows that belong to none of them.

    A document is there when all its rows are, with one digest: rows are written in batches, and a
    kill -9 between two of them leaves a part. An update writes the new version's rows before it
    removes the old ones, so of two whole versions the one written later counts.
    """
    versions: dict[tuple[str, str], list[tuple[Row, Vectors]]] = {}
    for row, vector in rows:
        versions.setdefault((row.doc_id, row.digest), []).append((row, vector))
    entries: dict[str, Entry] = {}
    strays: list[str] = []
    for parts in sorted(versions.values(), key=lambda parts: parts[0][0].written_ns):
        parts.sort(key=lambda part: part[0].ordinal)
        entry = Entry(tuple(row for row, _ in parts), np.stack([vector for _, vector in parts]))
        if not entry.is_whole:
            strays += entry.row_ids
            continue
        if entry.doc_id in entries:
            strays += entries[entry.doc_id].row_ids
        entries[entry.doc_id] = entry
    return entries, strays


class ChunkStore:
    """One collection. Safe to call from several threads; every call may block on the disk.

    `read_only` says that what is written is lost, `dropped` that an earlier collection was.
    """

    def __init__(self, settings: Settings, fingerprint: Fingerprint) -> None:
        """Open the collection, or create it.

        Raises RagUsageError, StoreError, and FingerprintError where it was made with something
        else, or by others.
        """
        self._server, self._held = settings.chroma_url, ExitStack()
        path, self.read_only, self.dropped = settings.path, False, False
        try:
            if not self._server:
                path, self.read_only = open_folder(path, settings.create, self._held)
            with _translated("cannot open"):
                self._client = open_client(settings.chroma_url, path)
                self._collection = self._open(settings, fingerprint)
        except RagError:
            self.close()
            raise

    def close(self) -> None:
        """Let another process open the same path. Idempotent."""
        self._held.close()

    def write(self, rows: Sequence[Row], vectors: Vectors) -> None:
        """Add up to BATCH_ROWS rows, or overwrite those with the same id. Raises StoreError."""
        with _translated("cannot write to"):
            self._collection.upsert(
                ids=[row.row_id for row in rows],
                embeddings=vectors,
                documents=[row.text for row in rows],
                metadatas=[row.metadata() for row in rows],
            )

    def delete(self, row_ids: Sequence[str], where: Mapping[str, Any] | None = None) -> None:
        """Remove the rows of which `where` holds; unknown ids are ignored. Raises StoreError."""
        for start in range(0, len(row_ids), BATCH_ROWS):
            with _translated("cannot delete from"):
                part = list(row_ids[start : start + BATCH_ROWS])
                self._collection.delete(ids=part, where=where)

    def delete_documents(self, doc_ids: Sequence[str]) -> None:
        """Remove all rows of these documents, of whatever version. Raises StoreError."""
        for where in _of_documents(doc_ids):
            with _translated("cannot delete from"):
                self._collection.delete(where=where)

    def delete_strays(self, row_ids: Sequence[str]) -> None:
        """Remove rows that belong to no document. Raises StoreError.

        On a server younger ones stay: they may be part of what another process is writing.
        """
        before_ns = time.time_ns() - ABANDONED_NS
        # Chroma compares while it deletes, so a row that is written again by then stays too.
        self.delete(row_ids, {"written_ns": {"$lt": before_ns}} if self._server else None)

    def row_ids(self) -> list[str]:
        """The ids of all rows, as they are at one moment. Raises StoreError."""
        with _translated("cannot read from"):
            return list(self._collection.get(include=[])["ids"])

    def rows(self, row_ids: Sequence[str]) -> Iterator[tuple[Row, Vectors]]:
        """The rows with these ids, each with its vector; a batch is read at a time.

        Not by offsets: a row that another process removes would move those behind it to the page
        before. Ids that are gone are left out. Raises StoreError.
        """
        for start in range(0, len(row_ids), BATCH_ROWS):
            yield from self._page(ids=list(row_ids[start : start + BATCH_ROWS]))

    def rows_of(self, doc_ids: Sequence[str]) -> Iterator[tuple[Row, Vectors]]:
        """All rows of these documents, those of some documents at a time. Raises StoreError."""
        for where in _of_documents(doc_ids):
            yield from self._page(where=where)

    def nearest(self, vector: Vectors) -> tuple[list[str], npt.NDArray[np.float32]]:
        """Ids of the rows nearest to the vector, [dim], and their cosines. Raises StoreError."""
        with _translated("cannot search"):
            found = self._collection.query(
                query_embeddings=[vector], n_results=_NEAREST_ROWS, include=["distances"]
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
        """Raise StoreError where Chroma does not answer within seconds."""
        with _translated("cannot reach"):
            if self._server:
                require_answer(self._server)
            self._collection.count()

    def _page(self, **which: Any) -> Iterator[tuple[Row, Vectors]]:
        with _translated("cannot read from"):
            page = self._collection.get(include=["documents", "metadatas", "embeddings"], **which)
        kept = zip(page["ids"], page["metadatas"], page["documents"], strict=True)
        rows = [Row.parsed(*each) for each in kept]
        yield from zip(rows, np.asarray(page["embeddings"], np.float32), strict=True)

    def _open(self, settings: Settings, fingerprint: Fingerprint) -> Any:
        name = settings.collection
        if name in {collection.name for collection in self._client.list_collections()}:
            collection = self._client.get_collection(name, embedding_function=None)
            made_with = require_ours((collection.metadata or {}).get(_FINGERPRINT), name)
            is_other = made_with != fingerprint.as_json()
            if not settings.rebuild and not (settings.renew and is_other):
                fingerprint.check(made_with, name)
                return _with_cosine(collection)
            self._client.delete_collection(name)
            self.dropped = True
        if not settings.create:
            raise RagUsageError(
                f"there is no collection {name!r} in {settings.place}: name another with"
                " --collection, or make it with kvswarm rag index"
            )
        return self._client.create_collection(
            name,
            configuration={"hnsw": HNSW},
            metadata={_FINGERPRINT: fingerprint.as_json()},
            embedding_function=None,
        )


def _of_documents(doc_ids: Sequence[str]) -> Iterator[Mapping[str, Any]]:
    """Conditions for Chroma that together are met by all rows of these documents."""
    for start in range(0, len(doc_ids), _BATCH_DOCUMENTS):
        yield {"doc_id": {"$in": list(doc_ids[start : start + _BATCH_DOCUMENTS])}}


def _with_cosine(collection: Any) -> Any:
    space = (collection.configuration_json.get("hnsw") or {}).get("space")
    if space != HNSW["space"]:
        raise FingerprintError(
            f"the collection {collection.name!r} measures by {space}, not cosine:"
            " make it anew with kvswarm rag index --rebuild"
        )
    return collection


@contextmanager
def _translated(action: str) -> Iterator[None]:
    try:
        yield
    except RagError:
        raise
    # Chroma's errors have no common base: they come from Rust, httpx, sqlite and itself.
    except Exception as error:
        raise StoreError(f"{action} Chroma: {reason_of(error)}") from error
