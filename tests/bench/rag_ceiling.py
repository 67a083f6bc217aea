"""How many questions any weighing of the ranking's signals could get right.

Of each question every document has the four signals of `rag_store.ranking.compare`, in standard
deviations over the documents. The weights with which most of these very questions have their
document first are found by a mixed-integer program: no fusion that adds the same signals up does
better, however its weights are come by. They say where more weighing is in vain, and are not kept.
"""

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from rag_corpus import DEMO
from scipy.optimize import Bounds, LinearConstraint, milp

from rag_store.documents import Document, Query
from rag_store.embedders import EmbedderSpec, open_embedder
from rag_store.fusion import fuse
from rag_store.library import open_library
from rag_store.ranking import compare, score_rows
from rag_store.readers import read_documents, read_queries
from rag_store.settings import Settings
from rag_store.snapshot import Snapshot
from rag_store.terms import terms

Floats = npt.NDArray[np.float64]
LEAD = 1e-3
"""So far ahead is first; the largest weight is at most 1."""


@dataclass(frozen=True, slots=True)
class Asked:
    """`signals` have the shape [questions, documents, 4], `coverage` and `gold` [questions]."""

    signals: Floats
    coverage: Floats
    gold: npt.NDArray[np.int64]


def main() -> None:
    """Print a row for each kind of weighing."""
    parsed = _parser().parse_args()
    queries = [each for each in read_queries(parsed.questions, parsed.split) if each.doc_ids]
    kinds = [read_documents(parsed.corpus), read_documents(parsed.corpus, expansions=False)]
    if parsed.more:
        kinds.insert(1, read_documents(parsed.more))
    asked = [asyncio.run(_ask(documents, queries)) for documents in kinds]
    ours, coverage, gold = asked[0].signals, asked[0].coverage[:, None, None], asked[0].gold
    every = np.concatenate([each.signals for each in asked], axis=2)
    free = np.concatenate([ours, ours * coverage], axis=2)
    sys.stdout.write(
        f"{len(queries)} questions: so many are right with some weights, and with none more\n"
    )
    for name, signals, least in (
        ("the 4 signals", ours, 0.0),
        ("the 4 signals, weights also negative and by coverage", free, -1.0),
        (f"the {every.shape[2]} signals of {len(asked)} libraries", every, 0.0),
    ):
        found, bound = most_right(signals, gold, least, parsed.limit_s)
        sys.stdout.write(f"{name}: {found}, at most {bound}\n")
        sys.stdout.flush()


def most_right(
    signals: Floats, gold: npt.NDArray[np.int64], least: float, limit_s: float
) -> tuple[int, int]:
    """How many questions weights from `least` to 1 get right, and how many none could exceed.

    Both are the same unless the search took more than `limit_s`.
    """
    questions, documents, count = signals.shape
    truth = signals[np.arange(questions), gold][:, None, :]
    others = np.arange(documents) != gold[:, None]
    lead, owner = (truth - signals)[others], np.nonzero(others)[0]
    # Where a question counts, each other document must be behind; where not, `slack` lets it go.
    slack = np.abs(lead).sum(axis=1).max() + LEAD
    counted = np.zeros((len(lead), questions))
    counted[np.arange(len(lead)), owner] = -slack
    solved = milp(
        np.r_[np.zeros(count), -np.ones(questions)],
        constraints=LinearConstraint(np.hstack([lead, counted]), LEAD - slack, np.inf),
        integrality=np.r_[np.zeros(count), np.ones(questions)],
        bounds=Bounds(
            np.r_[np.full(count, least), np.zeros(questions)], np.ones(count + questions)
        ),
        options={"time_limit": limit_s},
    )
    found = 0 if solved.x is None else round(-solved.fun)
    return found, int(np.floor(-solved.mip_dual_bound + 1e-6))


async def _ask(documents: Sequence[Document], queries: Sequence[Query]) -> Asked:
    embedder = open_embedder(EmbedderSpec())
    with tempfile.TemporaryDirectory(prefix="kvswarm-ceiling-") as folder:
        async with open_library(Settings(path=Path(folder))) as library:
            await library.ingest(documents)
            entries = [library.entry(doc_id) for doc_id in library.doc_ids]
    snapshot = Snapshot.of([each for each in entries if each], embedder.identity.dim)
    ids = [entry.doc_id for entry in snapshot.entries]
    signals, coverage = [], []
    for query in queries:
        (embedding,) = embedder.embed([query.text])
        found = score_rows(snapshot, embedding, terms(query.text), None)
        parts = compare(snapshot, embedding, found, "hybrid", np.arange(len(ids))).parts
        signals.append(np.stack([fuse("zscore", [part], [1]) for part in parts], axis=1))
        coverage.append(found.coverage)
    gold = [ids.index(query.doc_ids[0]) for query in queries]
    return Asked(np.array(signals, np.float64), np.array(coverage), np.array(gold))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--corpus", type=Path, default=DEMO)
    parser.add_argument("--questions", type=Path, default=DEMO)
    parser.add_argument("--split", default="test")
    parser.add_argument("--more", type=Path, help="the same documents with more expansions")
    parser.add_argument("--limit-s", type=float, default=300.0, help="of each search")
    return parser


if __name__ == "__main__":
    main()
