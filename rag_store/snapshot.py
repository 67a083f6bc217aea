"""All that a search needs in memory, immutable, so that searches go on while documents change."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rag_store.catalog import Entry
from rag_store.embedders import States, Vectors
from rag_store.lexical import LexicalIndex
from rag_store.store import Row
from rag_store.terms import terms


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Documents in the order of their ids; a document's chunks stand in adjacent rows.

    `first_rows` has one more item than there are documents: rows of document d are
    first_rows[d] to first_rows[d + 1]. `states` has one item for each row, or none at all.
    """

    entries: tuple[Entry, ...]
    rows: tuple[Row, ...]
    first_rows: npt.NDArray[np.int64]
    document_of_row: npt.NDArray[np.int64]
    row_of_id: dict[str, int]
    vectors: Vectors
    states: tuple[States, ...]
    chunks: LexicalIndex

    @classmethod
    def of(cls, entries: Sequence[Entry], dim: int) -> "Snapshot":
        """Index the documents; about a second for 10,000 chunks."""
        ordered = tuple(sorted(entries, key=lambda entry: entry.doc_id))
        rows = tuple(row for entry in ordered for row in entry.rows)
        counts = [len(entry.rows) for entry in ordered]
        chunk_terms = [terms(text) for entry in ordered for text in entry.passages]
        parts = [entry.vectors for entry in ordered]
        return cls(
            ordered,
            rows,
            np.cumsum([0, *counts]),
            np.repeat(np.arange(len(ordered)), counts),
            {row.row_id: at for at, row in enumerate(rows)},
            np.concatenate(parts) if parts else np.zeros((0, dim), np.float32),
            tuple(states for entry in ordered for states in entry.states),
            LexicalIndex(chunk_terms),
        )

    def best_by_document(self, row_scores: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """The highest of each document's row scores: shape [rows] becomes [documents]."""
        if not self.entries:
            return row_scores[:0]
        return np.maximum.reduceat(row_scores, self.first_rows[:-1])
