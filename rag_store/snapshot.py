"""All that a search needs in memory, immutable, so that searches go on while documents change."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import bm25s
import numpy as np
import numpy.typing as npt

from rag_store.catalog import Entry
from rag_store.embedders.protocol import Vectors
from rag_store.store import Row
from rag_store.terms import pieces, terms

Scores = npt.NDArray[np.float32]
_NO_TERM = ""
"""No text has it."""


class LexicalIndex:
    """An immutable BM25 index (Robertson's formula in Lucene's form, by bm25s) of rows of terms."""

    def __init__(self, rows: Sequence[Sequence[str]], k1: float = 1.5, b: float = 0.75) -> None:
        """Index the rows' terms; about 0.1 ms a row."""
        self._count = len(rows)
        made = bm25s.BM25(method="lucene", k1=k1, b=b, backend="numpy")
        # bm25s cannot index nothing at all: no rows, or rows without a term, such as "What is it?".
        texts = [list(row) for row in rows] if any(rows) else [[_NO_TERM]]
        made.index(texts, show_progress=False)
        self._columns: dict[str, int] = dict(made.vocab_dict)
        self._columns.pop(_NO_TERM, None)
        self._starts = np.asarray(made.scores["indptr"])
        self._rows = np.asarray(made.scores["indices"])
        self._weights = np.asarray(made.scores["data"])

    def scores(self, terms: Sequence[str]) -> Scores:
        """BM25 of each row, shape [rows]; zero for rows without any of the terms."""
        totals = np.zeros(self._count, np.float32)
        for term in terms:
            rows, weights = self.postings(term)
            totals[rows] += weights
        return totals

    def postings(self, term: str) -> tuple[npt.NDArray[np.int32], Scores]:
        """The rows that hold the term, and its BM25 weight in each of them."""
        column = self._columns.get(term)
        if column is None:
            return self._rows[:0], self._weights[:0]
        span = slice(int(self._starts[column]), int(self._starts[column + 1]))
        return self._rows[span], self._weights[span]

    def weight(self, term: str, row: int) -> float:
        """BM25 of the term in the row; 0 where it is not there."""
        rows, weights = self.postings(term)
        return float(weights[rows == row].sum())

    def rarity(self, term: str) -> float:
        """Lucene's inverse document frequency of the term; highest for one that no row holds."""
        return inverse_frequency(len(self.postings(term)[0]), self._count)


class WordCounts:
    """How many of some texts hold a word, for words of any kind."""

    def __init__(self, texts: Iterable[Iterable[str]]) -> None:
        """Count the texts, each given as its words."""
        self._held: Counter[str] = Counter()
        self._count = 0
        for words in texts:
            self._held.update(set(words))
            self._count += 1

    def rarities(self, words: Sequence[str]) -> Scores:
        """The inverse document frequency of each word, shape [words]."""
        found = [inverse_frequency(self._held[word], self._count) for word in words]
        return np.array(found, np.float32)


def inverse_frequency(held: int, count: int) -> float:
    """Lucene's, of a word that `held` of `count` texts hold; positive."""
    return math.log(1 + (count - held + 0.5) / (held + 0.5))


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
