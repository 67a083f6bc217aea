"""Documents into the store: what is there already is left, what was cut short is done again."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice

import numpy as np

from rag_store.catalog import Entry
from rag_store.chunking import Chunker
from rag_store.documents import Document
from rag_store.embedders.protocol import Embedder, Embedding, States
from rag_store.embedders.queue import concerns_a_text, embed_each
from rag_store.errors import RagError, RagUsageError
from rag_store.readers.files import check_text
from rag_store.state_files import StateFiles
from rag_store.store import ChunkStore, Row

Progress = Callable[[int, int], None]
Check = Callable[[], None]
# What a kill -9 costs at most, in chunks of small documents to be embedded again; and how many
# embeddings of a large one are in memory at once.
_CHUNKS_AT_ONCE = 256
# So many a transformer embeds in half a second; a query, or an interruption, waits no longer.
_TEXTS_AT_ONCE = 16


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
            entries = self._embed(group, check)
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

    def _embed(self, group: list[tuple[Row, ...]], check: Check) -> list[Entry]:
        texts = ((row.doc_id, row.passage) for rows in group for row in rows)
        made, asked = self._embeddings(texts, check), dict[str, States]()
        entries = []
        for rows in group:
            vectors = []
            for row, each in zip(rows, made, strict=False):
                vectors.append(each.vector)
                if row.is_question:  # its passage is the same as a row and as a sentence
                    asked[row.row_id] = each.states
            entries.append(Entry(rows, np.stack(vectors)))
        return list(self._with_states(entries, asked, check))

    def _with_states(
        self, entries: list[Entry], asked: dict[str, States], check: Check
    ) -> Iterator[Entry]:
        if self.states is None:
            yield from entries
            return
        told = ((entry.doc_id, text) for entry in entries for text in entry.sentence_passages)
        made = self._embeddings(told, check)
        for entry in entries:
            states = (each.states for each in islice(made, len(entry.sentences)))
            brought = (asked[row.row_id] for row in entry.rows[entry.chunk_count :])
            kept = self.states.keep(entry.digest, chain(states, brought), entry.state_count)
            yield replace(entry, states=kept)

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

    def _together(self, texts: Sequence[tuple[str, str]]) -> list[Embedding]:
        found = []
        made = embed_each(self.embedder, [text for _, text in texts])
        for (doc_id, _), each in zip(texts, made, strict=True):
            if isinstance(each, RagError):
                if not concerns_a_text(each):
                    raise each
                raise type(each)(f"document {doc_id!r}: {each}") from each
            found.append(each)
        return found


def _groups(rows: Iterable[tuple[Row, ...]]) -> Iterator[list[tuple[Row, ...]]]:
    group: list[tuple[Row, ...]] = []
    for each in rows:
        group.append(each)
        if sum(map(len, group)) >= _CHUNKS_AT_ONCE:
            yield group
            group = []
    if group:
        yield group
