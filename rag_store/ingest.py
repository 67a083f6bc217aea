"""Documents into the store: what is there already is left, what was cut short is done again."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from rag_store.catalog import Entry
from rag_store.chunking import Chunker
from rag_store.documents import Document
from rag_store.embedders import Embedder, Embedding, States
from rag_store.embedders.queue import checked_embeddings, concerns_a_text
from rag_store.errors import EmbedderError, RagUsageError
from rag_store.readers.files import check_text
from rag_store.state_files import StateFiles
from rag_store.store import ChunkStore, Row

Progress = Callable[[int, int], None]
Check = Callable[[], None]
# What a kill -9 costs at most, in chunks to be embedded again.
_CHUNKS_AT_ONCE = 256
# So many a transformer embeds in half a second; a query, or an interruption, waits no longer.
_TEXTS_AT_ONCE = 16


def _no_check() -> None:
    """Nothing is to end it."""


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

    def write(self, documents: Sequence[Document], check: Check = _no_check) -> Iterator[Entry]:
        """Store the documents, and give each one's entry once it is stored.

        `check` is called often, and ends this by what it raises. Raises RagUsageError,
        EmbedderError and StoreError.
        """
        for document in documents:
            if not document.doc_id or not document.text.strip():
                raise RagUsageError(f"document {document.doc_id!r}: it needs an id and a text")
            check_text(document.text, f"document {document.doc_id!r}")
        for group in _groups(map(self._rows, documents)):
            entries = self._embed(group, check)
            for entry in entries:
                self.save_states(entry)
            self._store(entries, check)
            yield from entries

    def restore_states(self, entry: Entry, dim: int) -> Entry:
        """The entry with its states, embedded again where their file is gone."""
        if self.states is None:
            return entry
        kept = self.states.load(entry.digest, len(entry.state_passages), dim)
        if kept is None:
            passages = (entry.doc_id, entry.state_passages)
            kept = self._states_of([passages], _no_check)[0]
            self.states.save(entry.digest, kept)
        return entry.with_states(kept)

    def save_states(self, entry: Entry) -> None:
        """Keep the entry's states, where the embedder gives any."""
        if self.states is not None:
            self.states.save(entry.digest, entry.states)

    def _rows(self, document: Document) -> tuple[Row, ...]:
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

    def _store(self, entries: Sequence[Entry], check: Check) -> None:
        rows = [row for entry in entries for row in entry.rows]
        vectors = np.concatenate([entry.vectors for entry in entries])
        for start in range(0, len(rows), _CHUNKS_AT_ONCE):
            check()
            part = slice(start, start + _CHUNKS_AT_ONCE)
            self.store.write(rows[part], vectors[part])

    def _embed(self, group: list[tuple[Row, ...]], check: Check = _no_check) -> list[Entry]:
        texts = [(row.doc_id, row.passage) for rows in group for row in rows]
        made = self._embeddings(texts, check)
        parts = [[next(made) for _ in rows] for rows in group]
        entries = [
            Entry(rows, np.stack([each.vector for each in part]))
            for rows, part in zip(group, parts, strict=True)
        ]
        if self.states is None:
            return entries
        told = self._states_of([(each.doc_id, each.sentence_passages) for each in entries], check)
        return [
            # A question's passage is the same as a row and as a sentence, so its states are there.
            entry.with_states((*states, *(each.states for each in part[entry.chunk_count :])))
            for entry, part, states in zip(entries, parts, told, strict=True)
        ]

    def _states_of(
        self, passages: Sequence[tuple[str, Sequence[str]]], check: Check
    ) -> list[tuple[States, ...]]:
        """The states of passages, those of each document given behind its id."""
        texts = [(doc_id, text) for doc_id, part in passages for text in part]
        made = self._embeddings(texts, check)
        return [tuple(next(made).states for _ in part) for _, part in passages]

    def _embeddings(self, texts: Sequence[tuple[str, str]], check: Check) -> Iterator[Embedding]:
        """Those of texts, each given behind its document's id, in their order."""
        # A transformer pads a batch to its longest text.
        order = sorted(range(len(texts)), key=lambda at: len(texts[at][1]))
        made: dict[int, Embedding] = {}
        for start in range(0, len(order), _TEXTS_AT_ONCE):
            check()
            part = order[start : start + _TEXTS_AT_ONCE]
            made |= zip(part, self._together([texts[at] for at in part]), strict=True)
        return (made[at] for at in range(len(texts)))

    def _together(self, texts: Sequence[tuple[str, str]]) -> list[Embedding]:
        try:
            return checked_embeddings(self.embedder, [text for _, text in texts])
        except Exception as error:
            if not concerns_a_text(error):
                raise
        return [self._alone(*each) for each in texts]

    def _alone(self, doc_id: str, text: str) -> Embedding:
        try:
            return checked_embeddings(self.embedder, [text])[0]
        except EmbedderError as error:
            raise type(error)(f"document {doc_id!r}: {error}") from error
        except Exception as error:
            reason = f"the embedder failed: {error}"
            raise EmbedderError(f"document {doc_id!r}: {reason}") from error


def _groups(rows: Iterable[tuple[Row, ...]]) -> Iterator[list[tuple[Row, ...]]]:
    group: list[tuple[Row, ...]] = []
    for each in rows:
        group.append(each)
        if sum(map(len, group)) >= _CHUNKS_AT_ONCE:
            yield group
            group = []
    if group:
        yield group
