"""Which documents a collection holds, told from its rows.

A document is there when all its rows are, with one digest: rows are written in batches, and a
kill -9 between two of them leaves a part. An update writes the new version's rows before it
removes the old ones, so of two whole versions the one written later counts.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

import numpy as np

from rag_store.chunking import Chunk, join, passage, sentences
from rag_store.documents import Document
from rag_store.embedders.protocol import Vectors
from rag_store.state_files import WordStates
from rag_store.store import Row


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
        """The document's id."""
        return self.rows[0].doc_id

    @property
    def title(self) -> str:
        """The document's title."""
        return self.rows[0].title

    @property
    def digest(self) -> str:
        """The document's digest."""
        return self.rows[0].digest

    @property
    def row_ids(self) -> list[str]:
        """The ids of its rows."""
        return [row.row_id for row in self.rows]

    @property
    def is_whole(self) -> bool:
        """Whether no row is missing, or of another version."""
        ordinals = [row.ordinal for row in self.rows]
        are_all = ordinals == list(range(self.rows[0].count))
        return are_all and self.document().digest == self.digest

    @cached_property
    def chunk_count(self) -> int:
        """How many of the rows are chunks; the others are questions."""
        return sum(not row.is_question for row in self.rows)

    @cached_property
    def sentences(self) -> tuple[Chunk, ...]:
        """The sentences of its text."""
        return sentences(self.document().text)

    @property
    def state_count(self) -> int:
        """How many sentences and questions there are."""
        return len(self.sentences) + len(self.rows) - self.chunk_count

    @property
    def sentence_passages(self) -> Iterator[str]:
        """What is embedded for the states of each sentence."""
        return (passage(self.title, sentence.text) for sentence in self.sentences)

    @property
    def state_passages(self) -> Iterator[str]:
        """What is embedded for the states of each sentence, and then of each question."""
        return chain(self.sentence_passages, (row.text for row in self.rows[self.chunk_count :]))

    @cached_property
    def text_digest(self) -> str:
        """The digest of its document's text."""
        return self.document().text_digest

    def document(self) -> Document:
        """The document, put together from its rows."""
        told, asked = self.rows[: self.chunk_count], self.rows[self.chunk_count :]
        text = join(tuple(Chunk(row.ordinal, row.start, row.text) for row in told))
        return Document(self.doc_id, self.title, text, tuple(row.text for row in asked))


def sort_out(pages: Iterable[tuple[list[Row], Vectors]]) -> tuple[dict[str, Entry], list[str]]:
    """The whole documents by id, and the ids of the rows that belong to none of them."""
    versions: dict[tuple[str, str], list[tuple[Row, Vectors]]] = {}
    for rows, vectors in pages:
        for row, vector in zip(rows, vectors, strict=True):
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
