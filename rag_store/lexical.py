"""BM25 over chunks, what each term contributes to it, and how rare words are."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence

import bm25s
import numpy as np
import numpy.typing as npt

Scores = npt.NDArray[np.float32]
_NO_TERM = ""
"""No text has it."""


class LexicalIndex:
    """An immutable BM25 index (Robertson's formula in Lucene's form, by bm25s) of rows of terms."""

    def __init__(self, rows: Sequence[Sequence[str]], k1: float = 1.5, b: float = 0.75) -> None:
        """Index the rows' terms; about 0.1 ms a row."""
        self._count = len(rows)
        self._bm25 = bm25s.BM25(method="lucene", k1=k1, b=b, backend="numpy")
        # bm25s cannot index nothing at all: no rows, or rows without a term, such as "What is it?".
        texts = [list(row) for row in rows] if any(rows) else [[_NO_TERM]]
        self._bm25.index(texts, show_progress=False)
        self._columns: dict[str, int] = dict(self._bm25.vocab_dict)
        self._columns.pop(_NO_TERM, None)
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
