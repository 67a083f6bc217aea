"""All that a search needs in memory, immutable, so that searches go on while documents change."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rag_store.catalog import Entry
from rag_store.embedders import Vectors
from rag_store.lexical import LexicalIndex, WordCounts
from rag_store.store import Row
from rag_store.terms import pieces, terms


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Documents in the order of their ids; a document's rows stand beside each other.

    `first_rows` has one more item than there are documents: rows of document d are first_rows[d]
    to first_rows[d + 1]. `chunks` is of all rows, and `words` counts the sentences, and questions,
    that a word is in; there are none where the embedder gives no states.
    """

    entries: tuple[Entry, ...]
    rows: tuple[Row, ...]
    first_rows: npt.NDArray[np.int64]
    row_of_id: dict[str, int]
    vectors: Vectors
    chunks: LexicalIndex
    words: WordCounts

    @classmethod
    def of(cls, entries: Sequence[Entry], dim: int) -> "Snapshot":
        """Index the documents; about a second for 10,000 chunks."""
        ordered = tuple(sorted(entries, key=lambda entry: entry.doc_id))
        rows = tuple(row for entry in ordered for row in entry.rows)
        parts = [entry.vectors for entry in ordered]
        return cls(
            ordered,
            rows,
            np.cumsum([0, *(len(entry.rows) for entry in ordered)]),
            {row.row_id: at for at, row in enumerate(rows)},
            np.concatenate(parts) if parts else np.zeros((0, dim), np.float32),
            LexicalIndex([terms(row.passage) for row in rows]),
            WordCounts(
                pieces(text) for entry in ordered if entry.states for text in entry.state_passages
            ),
        )

    def best_by_document(self, row_scores: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """The highest of each document's row scores: shape [rows] becomes [documents]."""
        if not self.entries:
            return row_scores[:0]
        return np.maximum.reduceat(row_scores, self.first_rows[:-1])
