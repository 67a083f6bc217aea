"""Documents into the store: what is there already is left, what was cut short is done again."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from rag_store.catalog import Entry
from rag_store.chunking import Chunker
from rag_store.documents import Document
from rag_store.embedders import Embedder, States
from rag_store.embedders.queue import checked_embeddings
from rag_store.errors import RagUsageError
from rag_store.state_files import StateFiles
from rag_store.store import ChunkStore, Row

Progress = Callable[[int, int], None]
# What a kill -9 costs at most, in chunks to be embedded again.
_CHUNKS_AT_ONCE = 256


@dataclass(frozen=True, slots=True)
class IngestReport:
    """How many documents were new, changed, the same as before, and taken out."""

    added: int = 0
    updated: int = 0
    unchanged: int = 0
    removed: int = 0


@dataclass(frozen=True, slots=True)
class Writer:
    """Cuts, embeds and stores documents; blocks."""

    store: ChunkStore
    states: StateFiles | None
    embedder: Embedder
    chunker: Chunker

    def write(self, documents: Sequence[Document]) -> Iterator[Entry]:
        """Store the documents, and give each one's entry once it is stored.

        Raises RagUsageError, EmbedderError and StoreError.
        """
        for group in _groups([self._rows(document) for document in documents]):
            entries = self._embed(group)
            rows = [row for entry in entries for row in entry.rows]
            for entry in entries:
                self.save_states(entry)
            self.store.write(rows, np.concatenate([entry.vectors for entry in entries]))
            yield from entries

    def restore_states(self, entry: Entry, dim: int) -> Entry:
        """The entry with its states, embedded again where their file is gone."""
        if self.states is None:
            return entry
        kept = self.states.load(entry.digest, len(entry.state_passages), dim)
        if kept is None:
            kept = self._states_of([entry])[0]
            self.states.save(entry.digest, kept)
        return entry.with_states(kept)

    def save_states(self, entry: Entry) -> None:
        """Keep the entry's states, where the embedder gives any."""
        if self.states is not None:
            self.states.save(entry.digest, entry.states)

    def _rows(self, document: Document) -> tuple[Row, ...]:
        if not document.doc_id or not document.text.strip():
            raise RagUsageError(f"document {document.doc_id!r}: it needs an id and a text")
        chunks = self.chunker.cut(document.text)
        fixed = document.doc_id, document.title, document.digest
        count, now_ns = len(chunks) + len(document.questions), time.time_ns()
        told = [
            Row(*fixed, chunk.ordinal, count, chunk.start, chunk.text, now_ns) for chunk in chunks
        ]
        asked = [
            Row(*fixed, ordinal, count, 0, question, now_ns, is_question=True)
            for ordinal, question in enumerate(document.questions, len(chunks))
        ]
        return (*told, *asked)

    def _embed(self, group: list[tuple[Row, ...]]) -> list[Entry]:
        texts = [row.passage for rows in group for row in rows]
        made = iter(checked_embeddings(self.embedder, texts))
        entries = [Entry(rows, np.stack([next(made).vector for _ in rows])) for rows in group]
        if self.states is None:
            return entries
        states = self._states_of(entries)
        return [entry.with_states(each) for entry, each in zip(entries, states, strict=True)]

    def _states_of(self, entries: Sequence[Entry]) -> list[tuple[States, ...]]:
        """The states of each entry's sentences and questions."""
        texts = [entry.state_passages for entry in entries]
        made = iter(checked_embeddings(self.embedder, [each for part in texts for each in part]))
        return [tuple(next(made).states for _ in part) for part in texts]


def _groups(rows: Sequence[tuple[Row, ...]]) -> Iterator[list[tuple[Row, ...]]]:
    group: list[tuple[Row, ...]] = []
    for each in rows:
        group.append(each)
        if sum(map(len, group)) >= _CHUNKS_AT_ONCE:
            yield group
            group = []
    if group:
        yield group
