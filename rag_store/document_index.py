"""What a library holds, the rows in Chroma and the index in memory, and how documents get there.

What is there already is left, what was cut short is done again. All of it blocks.
"""

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice

import numpy as np

from rag_store.documents import Chunker, Document, sha256_32
from rag_store.embedders.protocol import Embedder, Embedding, States
from rag_store.embedders.queue import embed_each
from rag_store.errors import OF_A_TEXT, RagError, RagUsageError
from rag_store.ranking import Snapshot
from rag_store.readers.formats import check_text
from rag_store.settings import Fingerprint, Settings
from rag_store.state_files import StateFiles
from rag_store.store import ChunkStore, Entry, Row, sort_out

Progress = Callable[[int, int], None]
Check = Callable[[], None]
# What a kill -9 costs at most, in chunks of small documents to be embedded again; and how many
# embeddings of a large one are in memory at once.
_CHUNKS_AT_ONCE = 256
# So many a transformer embeds in half a second; a query, or an interruption, waits no longer.
_TEXTS_AT_ONCE = 16
_NO_VECTORS = np.zeros((0, 0), np.float32)


@dataclass(frozen=True, slots=True)
class Size:
    """How much a library holds; `questions` are those that documents bring along."""

    documents: int
    chunks: int
    questions: int = 0

    def __str__(self) -> str:
        more = f" and {self.questions} questions" if self.questions else ""
        return f"{self.documents} documents in {self.chunks} chunks{more}"


class DocumentIndex:
    """The store, and the entries that it gives, in memory."""

    def __init__(self, settings: Settings, embedder: Embedder) -> None:
        """Read the collection; nothing in it is changed."""
        identity = embedder.identity
        self.fingerprint = Fingerprint.of(identity, settings.chunker)
        self.store = ChunkStore(settings, self.fingerprint)
        files = (settings.path, settings.collection, self.fingerprint, self.store.read_only)
        states = StateFiles(*files) if identity.states else None
        if states is not None and (settings.rebuild or self.store.dropped):
            states.drop_others()
        self.writer = Writer(self.store, states, embedder, settings.chunker)
        self._unsound: set[str] | None = None
        self.entries = {
            doc_id: self.writer.restore_states(entry) for doc_id, entry in self._read().items()
        }
        self._snapshot: Snapshot | None = None
        self._is_stale = False
        self._building = threading.Lock()

    @property
    def size(self) -> Size:
        """How much it holds."""
        entries = list(self.entries.values())
        chunks = sum(entry.chunk_count for entry in entries)
        rows = sum(len(entry.rows) for entry in entries)
        return Size(len(entries), chunks, rows - chunks)

    def corpus_digest(self) -> str:
        """SHA-256 over lines of id and text digest, sorted by id, as 32 hex digits."""
        held = sorted(self.entries.copy().items())
        return sha256_32("".join(f"{doc_id} {entry.text_digest}\n" for doc_id, entry in held))

    def write(
        self, documents: Sequence[Document], progress: Progress | None, gone: Sequence[str] = ()
    ) -> None:
        """Take out those that are `gone`, and store the documents in place of any with their ids.

        Those that are gone must be there. One thread at a time. Until this returns labels search
        what was there before. Raises RagUsageError where the library can only be read.
        """
        self.require_writable()
        shown = None
        try:
            self._clean()
            self._remove(gone)
            self._store(documents, progress)
            shown = self._indexed() if self._is_stale else None
        finally:
            if self._is_stale:
                with self._building:
                    # After an error None: who asks next indexes what was changed until then.
                    self._snapshot = shown
                self._is_stale = False

    def require_writable(self) -> None:
        """Raise RagUsageError where the library can only be read."""
        if self.store.read_only:
            raise RagUsageError(
                "the library's folder can only be read: copy it, and change the copy"
            )

    def snapshot(self) -> Snapshot:
        """All that was there when the latest change ended; indexed here where nobody has yet."""
        with self._building:
            if self._snapshot is None:
                self._snapshot = self._indexed()
            return self._snapshot

    def _read(self) -> dict[str, Entry]:
        """The whole documents by id; which others have rows is kept in mind."""
        row_ids = self.store.row_ids()
        found, _ = sort_out(self.store.rows(row_ids))
        sound = {row_id for entry in found.values() for row_id in entry.row_ids}
        self._unsound = {Row.doc_id_of(row_id) for row_id in row_ids if row_id not in sound}
        # Another process may have changed them while the rows were read.
        again, _ = sort_out(self.store.rows_of(sorted(self._unsound)))
        return {key: each for key, each in found.items() if key not in self._unsound} | again

    def _clean(self) -> None:
        """Before the first change, remove what is left of documents that were cut short.

        Which rows these are is asked for again: other processes have gone on since `_read`.
        """
        if self._unsound is None:
            return
        _, strays = sort_out(self.store.rows_of(sorted(self._unsound)))
        self.store.delete_strays(strays)
        if self.writer.states is not None:
            self.writer.states.keep_only({entry.digest for entry in self.entries.values()})
        self._unsound = None

    def _store(self, documents: Sequence[Document], progress: Progress | None) -> None:
        stored = 0

        def told() -> None:
            if progress is not None:
                progress(stored, len(documents))

        for entry in self.writer.write(documents, told):
            self._replace(entry)
            stored += 1
            told()

    def _remove(self, doc_ids: Sequence[str]) -> None:
        # Also rows that are not known here: of a change that failed, or of another process.
        self.store.delete_documents(doc_ids)
        for doc_id in doc_ids:
            self._forget(self.entries.pop(doc_id, None))
            self._is_stale = True

    def _replace(self, entry: Entry) -> None:
        """A change that was given up and repeated comes twice: what it wrote stays."""
        before = self.entries.get(entry.doc_id)
        if before is not None and before.digest != entry.digest:
            kept = set(entry.row_ids)
            self.store.delete([each for each in before.row_ids if each not in kept])
            self._forget(before)
        self.entries[entry.doc_id] = entry
        self._is_stale = True

    def _forget(self, entry: Entry | None) -> None:
        if entry is not None and self.writer.states is not None:
            self.writer.states.remove(entry.digest)

    def _indexed(self) -> Snapshot:
        return Snapshot.of(list(self.entries.values()), self.fingerprint.dim)


@dataclass(frozen=True, slots=True)
class Writer:
    """Cuts, embeds and stores documents; without `states` no file of them."""

    store: ChunkStore
    states: StateFiles | None
    embedder: Embedder
    chunker: Chunker

    def write(self, documents: Sequence[Document], check: Check = lambda: None) -> Iterator[Entry]:
        """Store the documents, and give each one's entry once it is stored.

        `check` is called often, and ends this by what it raises. Raises RagUsageError,
        EmbedderError and StoreError.
        """
        for document in documents:
            if not document.doc_id or not document.text.strip():
                raise RagUsageError(f"document {document.doc_id!r}: it needs an id and a text")
            check_text(document.text, f"document {document.doc_id!r}")
        for group in _groups(map(self._rows, documents)):
            entries = list(self._embed(group, check))
            self._store(entries, check)
            yield from entries

    def restore_states(self, entry: Entry) -> Entry:
        """The entry with its states, embedded again where their file is gone."""
        if self.states is None:
            return entry
        kept = self.states.load(entry.digest, entry.state_count)
        if kept is None:
            texts = ((entry.doc_id, text) for text in entry.state_passages)
            made = self._embeddings(texts, lambda: None)
            kept = self.states.keep(entry.digest, (each.states for each in made), entry.state_count)
        return replace(entry, states=kept)

    def _rows(self, document: Document) -> tuple[Row, ...]:
        texts = [(each.start, each.text, False) for each in self.chunker.cut(document.text)]
        texts += [(0, question, True) for question in document.questions]
        fixed, now_ns = (document.doc_id, document.title, document.digest), time.time_ns()
        return tuple(
            Row(*fixed, at, len(texts), start, text, now_ns, is_question)
            for at, (start, text, is_question) in enumerate(texts)
        )

    def _store(self, entries: Sequence[Entry], check: Check) -> None:
        rows = [row for entry in entries for row in entry.rows]
        vectors = np.concatenate([entry.vectors for entry in entries])
        for start in range(0, len(rows), _CHUNKS_AT_ONCE):
            check()
            part = slice(start, start + _CHUNKS_AT_ONCE)
            self.store.write(rows[part], vectors[part])

    def _embed(self, group: list[tuple[Row, ...]], check: Check) -> Iterator[Entry]:
        made = self._embeddings(self._passages(group), check)
        for rows in group:
            vectors, asked = [], list[States]()
            for row, each in zip(rows, made, strict=False):
                vectors.append(each.vector)
                if row.is_question:  # its passage is the same as a row and as a sentence
                    asked.append(each.states)
            entry = Entry(rows, np.stack(vectors))
            if self.states is not None:
                told = (each.states for each in islice(made, len(entry.sentences)))
                kept = self.states.keep(entry.digest, chain(told, asked), entry.state_count)
                entry = replace(entry, states=kept)
            yield entry

    def _passages(self, group: list[tuple[Row, ...]]) -> Iterator[tuple[str, str]]:
        for rows in group:
            yield from ((row.doc_id, row.passage) for row in rows)
            if self.states is not None:
                sentences = Entry(rows, _NO_VECTORS).sentence_passages
                yield from ((rows[0].doc_id, text) for text in sentences)

    def _embeddings(self, texts: Iterable[tuple[str, str]], check: Check) -> Iterator[Embedding]:
        """Those of texts, each given behind its document's id, in their order."""
        texts = iter(texts)
        while part := list(islice(texts, _CHUNKS_AT_ONCE)):
            # A transformer pads a batch to its longest text.
            order = sorted(range(len(part)), key=lambda at: len(part[at][1]))
            made: dict[int, Embedding] = {}
            for start in range(0, len(order), _TEXTS_AT_ONCE):
                check()
                few = order[start : start + _TEXTS_AT_ONCE]
                made |= zip(few, self._together([part[at] for at in few]), strict=True)
            yield from (made[at] for at in range(len(part)))

    def _together(self, texts: Sequence[tuple[str, str]]) -> Iterator[Embedding]:
        made = embed_each(self.embedder, [text for _, text in texts])
        for (doc_id, _), each in zip(texts, made, strict=True):
            if not isinstance(each, RagError):
                yield each
            elif isinstance(each, OF_A_TEXT):
                raise type(each)(f"document {doc_id!r}: {each}") from each
            else:
                raise each


def _groups(documents: Iterable[tuple[Row, ...]]) -> Iterator[list[tuple[Row, ...]]]:
    group: list[tuple[Row, ...]] = []
    for rows in documents:
        group.append(rows)
        if sum(map(len, group)) >= _CHUNKS_AT_ONCE:
            yield group
            group = []
    if group:
        yield group


@dataclass(frozen=True, slots=True)
class IngestReport:
    """How many documents were new, changed, the same as before, and taken out."""

    added: int = 0
    updated: int = 0
    unchanged: int = 0
    removed: int = 0
