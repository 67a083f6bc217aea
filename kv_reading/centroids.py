"""Which document a request is about, by the KV of earlier requests whose document is known."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kv_reading.errors import KvError
from kv_reading.features import Scale
from kv_reading.kv import Floats


@dataclass(frozen=True, slots=True)
class Near:
    """A document, and how far its centroid lies: the root mean square over all columns."""

    doc_id: str
    distance: float


class Centroids:
    """The mean of each document's earlier requests, each column standardised over all of them."""

    def __init__(self, rows: Floats, doc_ids: Sequence[str]) -> None:
        """`rows` are [requests, columns]. Raises KvError for fewer than two documents."""
        names, self._at = np.unique(doc_ids, return_inverse=True)
        if len(names) < 2:
            raise KvError(
                f"earlier questions are about {len(names)} document(s): a label needs two or more"
            )
        self.doc_ids = tuple(map(str, names))
        self._scale = Scale.of(rows)
        self._rows = self._scale.standardised(rows)
        self._counts = np.bincount(self._at)
        self._sums = np.zeros((len(names), rows.shape[1]))
        np.add.at(self._sums, self._at, self._rows)

    def ranked(self, row: Floats, without: Sequence[int] = ()) -> list[Near]:
        """All documents for a request's `row`, [columns], the nearest first.

        Earlier requests `without` count in no centroid; a document that has no other is left out.
        """
        sums, counts = self._sums, self._counts
        if without:
            sums, counts, left_out = sums.copy(), counts.copy(), list(without)
            np.subtract.at(sums, self._at[left_out], self._rows[left_out])
            np.subtract.at(counts, self._at[left_out], 1)
        kept = np.flatnonzero(counts)
        centroids = sums[kept] / counts[kept, None]
        apart = centroids - self._scale.standardised(row)
        distances = np.sqrt(np.mean(apart**2, axis=1))
        order = np.argsort(distances, kind="stable")
        return [Near(self.doc_ids[kept[at]], float(distances[at])) for at in order]
