"""BM25 over chunks, with what a term contributes to a chunk kept in sight."""

from collections.abc import Sequence

import bm25s
import numpy as np
import numpy.typing as npt

Scores = npt.NDArray[np.float32]


class LexicalIndex:
    """An immutable BM25 index (Robertson's formula in Lucene's form, by bm25s) of rows of terms."""

    def __init__(self, rows: Sequence[Sequence[str]], k1: float = 1.5, b: float = 0.75) -> None:
        """Index the rows' terms; about 0.1 ms a row."""
        self._count = len(rows)
        self._bm25 = bm25s.BM25(method="lucene", k1=k1, b=b, backend="numpy")
        # bm25s cannot index nothing at all.
        self._bm25.index([list(row) for row in rows] or [[""]], show_progress=False)
        self._columns: dict[str, int] = self._bm25.vocab_dict
        self._starts = np.asarray(self._bm25.scores["indptr"])
        self._rows = np.asarray(self._bm25.scores["indices"])
        self._weights = np.asarray(self._bm25.scores["data"])

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
        if column is None or self._count == 0:
            return self._rows[:0], self._weights[:0]
        span = slice(int(self._starts[column]), int(self._starts[column + 1]))
        return self._rows[span], self._weights[span]

    def rarity(self, term: str) -> float:
        """Lucene's inverse document frequency of the term; highest for one that no row holds."""
        held = len(self.postings(term)[0])
        return float(np.log(1 + (self._count - held + 0.5) / (held + 0.5)))
