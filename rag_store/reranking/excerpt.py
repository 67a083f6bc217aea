"""What a reranker reads of a document: the parts that are nearest to the question."""

from collections.abc import Sequence

import numpy as np

from rag_store.catalog import Entry
from rag_store.chunking import Chunk, join, passage
from rag_store.embedders import Vectors
from rag_store.ranking import BM25_WEIGHT, Scores

_GAP = " … "


def excerpt(entry: Entry, query: Vectors, shares: Scores, count: int) -> str:
    """The title and so many of the document's best chunks, in the order of its text.

    `query` has the shape [dim]; `shares` are of the highest possible BM25, of each row of the
    entry, shape [rows].
    """
    told = entry.chunk_count
    scores = entry.vectors[:told] @ query + BM25_WEIGHT * shares[:told]
    best = np.sort(np.argsort(-scores, kind="stable")[:count])
    rows = [entry.rows[at] for at in best]
    return passage(entry.title, _GAP.join(_runs([Chunk(r.ordinal, r.start, r.text) for r in rows])))


def _runs(chunks: Sequence[Chunk]) -> list[str]:
    """The texts of chunks that follow one another, what they share said once."""
    runs: list[list[Chunk]] = []
    for chunk in chunks:
        if not runs or chunk.ordinal != runs[-1][-1].ordinal + 1:
            runs.append([])
        runs[-1].append(chunk)
    return [_joined(run) for run in runs]


def _joined(run: list[Chunk]) -> str:
    first = run[0].start
    return join(tuple(Chunk(each.ordinal, each.start - first, each.text) for each in run)).strip()
