"""What a library holds: the rows in Chroma, and the entries and the index in memory."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass

from rag_store.catalog import Entry, sort_out
from rag_store.documents import Document, sha256_32
from rag_store.embedders.protocol import Embedder
from rag_store.errors import RagUsageError
from rag_store.ingest import Progress, Writer
from rag_store.settings import Fingerprint, Settings
from rag_store.snapshot import Snapshot
from rag_store.state_files import StateFiles
from rag_store.store import ChunkStore, Row


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
    """What a library holds: the store, and the entries it gives in memory. Blocks."""

    def __init__(self, settings: Settings, embedder: Embedder, rebuild: bool) -> None:
        """Read the collection; nothing in it is changed."""
        identity = embedder.identity
        self.fingerprint = Fingerprint.of(identity, settings.chunker)
        self.store = ChunkStore(settings, self.fingerprint, rebuild)
        files = (settings.path, settings.collection, self.fingerprint, self.store.read_only)
        states = StateFiles(*files) if identity.states else None
        if states is not None and rebuild:
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
        found, _ = sort_out(self.store.pages(row_ids))
        sound = {row_id for entry in found.values() for row_id in entry.row_ids}
        self._unsound = {Row.doc_id_of(row_id) for row_id in row_ids if row_id not in sound}
        # Another process may have changed them while the pages were read.
        again, _ = sort_out(self.store.pages_of(sorted(self._unsound)))
        return {key: each for key, each in found.items() if key not in self._unsound} | again

    def _clean(self) -> None:
        """Before the first change, remove what is left of documents that were cut short.

        Which rows these are is asked for again: other processes have gone on since `_read`.
        """
        if self._unsound is None:
            return
        _, strays = sort_out(self.store.pages_of(sorted(self._unsound)))
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
            if (entry := self.entries.pop(doc_id, None)) is not None:
                self._forget(entry)
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

    def _forget(self, entry: Entry) -> None:
        if self.writer.states is not None:
            self.writer.states.remove(entry.digest)

    def _indexed(self) -> Snapshot:
        return Snapshot.of(list(self.entries.values()), self.fingerprint.dim)
