"""What was learned with an adapter: which documents a text's vector is likely to be about."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Indices = npt.NDArray[np.int64]

_LEAST = -12.0
"""Logarithms of probabilities below that of one in 160,000 tell nothing apart."""
BELOW = _LEAST - 1


@dataclass(frozen=True, slots=True)
class Head:
    """A row of `weights`, shape [rows, dim], and of `biases`, shape [rows], for each chunk learned.

    `owners`, shape [rows], says which of the documents in `doc_ids` it is of.
    """

    weights: npt.NDArray[np.floating]
    biases: npt.NDArray[np.floating]
    owners: Indices
    doc_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Learned:
    """The head of those documents that are here, rows in the order of the documents.

    `starts` is the first row of each document that was learned, and `place`, shape [documents],
    where it stands among these; -1 for one that was not.
    """

    weights: Floats
    biases: Floats
    starts: Indices
    place: Indices

    @classmethod
    def of(cls, head: Head, doc_ids: Sequence[str]) -> "Learned | None":
        """For documents in the order of their ids; None where it has learned none of them."""
        here = {doc_id: at for at, doc_id in enumerate(doc_ids)}
        owners = np.array([here.get(head.doc_ids[each], -1) for each in head.owners], np.int64)
        order = np.argsort(owners, kind="stable")[np.count_nonzero(owners < 0) :]
        if not len(order):
            return None
        known, starts = np.unique(owners[order], return_index=True)
        place = np.full(len(doc_ids), -1, np.int64)
        place[known] = np.arange(len(known))
        weights, biases = head.weights[order], head.biases[order]
        return cls(weights.astype(np.float32), biases.astype(np.float32), starts, place)

    def log_probabilities(self, vector: Floats) -> Floats:
        """Of each document here among all learned ones, shape [documents], from -12 to 0.

        NaN for one that was not learned.
        """
        by_row = self.weights @ vector + self.biases
        likely = np.add.reduceat(np.exp(by_row - by_row.max()), self.starts)
        known = np.log(np.maximum(likely / likely.sum(), np.exp(_LEAST)))
        values = np.append(known, np.nan)[self.place]
        return values.astype(np.float32)
