"""Chroma's HNSW index against comparing all chunks."""

import time
from dataclasses import dataclass

import numpy as np

from rag_store.embedders import Vectors
from rag_store.ranking import NEAREST_ROWS, Nearest
from rag_store.snapshot import Snapshot

RECALL_AT = 10
_SAME = 1e-5


@dataclass(frozen=True, slots=True)
class Neighbours:
    """One query asked both ways.

    `recall` is the share of the 10 nearest chunks that are among the first 10 of the index, where
    a chunk as near as the tenth counts as one of them.
    """

    recall: float
    exact_ms: float
    hnsw_ms: float


def compare(snapshot: Snapshot, nearest: Nearest, vector: Vectors) -> Neighbours:
    """Ask both for the chunks nearest to a vector of shape [dim]; there must be one.

    Raises StoreError.
    """
    begun_s = time.perf_counter()
    cosines = snapshot.vectors @ vector
    exact_s = time.perf_counter()
    row_ids, _ = nearest(vector, NEAREST_ROWS)
    hnsw_s = time.perf_counter()
    wanted = min(RECALL_AT, len(cosines))
    tenth = np.sort(cosines)[-wanted]
    held = [snapshot.row_of_id[row_id] for row_id in row_ids if row_id in snapshot.row_of_id]
    found = sum(bool(cosines[row] >= tenth - _SAME) for row in held[:wanted])
    return Neighbours(found / wanted, (exact_s - begun_s) * 1000, (hnsw_s - exact_s) * 1000)
