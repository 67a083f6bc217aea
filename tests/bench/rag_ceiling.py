"""How many questions the ranking's signals could get right, added up with the best weights.

They are eight: four with the questions that were written for the documents, four without.

The weights with which most of the questions asked have their document first are searched for by a
mixed-integer program: no others do better, however they are come by. They are the same for all
questions, or for each a part that grows with the share of its words that some chunk holds, as in
`rag_store.ranking`. They show where more weighing is in vain, and are not kept.
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
from rag_store.embedders import Embedder, EmbedderSpec, open_embedder
from rag_store.embedders.adapter import write_adapter
from rag_store.embedders.head import Learned
from rag_store.embedders.minilm import WEIGHTS, model_folder
from rag_store.embedders.transformer import load_model
from rag_store.fusion import fuse
from rag_store.library import open_library
from rag_store.ranking import rank
from rag_store.readers import read_documents, read_queries
from rag_store.settings import FUSIONS, Settings
from rag_store.signals import Signals, compare, score_rows
from rag_store.snapshot import Snapshot
from rag_store.terms import terms
from rag_store.tuning.training import Course, tune

Floats = npt.NDArray[np.float64]
LEAD = 1e-4
"""So far ahead is first, where no weight and no lead is above 1; the product needs less."""
ALL = "of all documents"


@dataclass(frozen=True, slots=True)
class Leads:
    """By how much a question's document is ahead of each other one that is ranked.

    `values` have the shape [pairs, signals], `question` and `coverage` [pairs]. Of `lost`
    questions the document is not among those that are ranked.
    """

    values: Floats
    question: npt.NDArray[np.int64]
    coverage: Floats
    questions: int
    lost: int

    def beside(self, other: "Leads") -> "Leads":
        """With the signals of another library of the same documents."""
        values = np.hstack([self.values, other.values])
        return Leads(values, self.question, self.coverage, self.questions, self.lost)

    def by_coverage(self) -> "Leads":
        """With weights that may change with the coverage."""
        values = np.hstack([self.values, self.values * self.coverage[:, None]])
        return Leads(values, self.question, self.coverage, self.questions, self.lost)


@dataclass(frozen=True, slots=True)
class _Lead:
    """Of one question; `values` have the shape [other documents, signals]."""

    values: Floats
    coverage: float
    is_lost: bool


def main() -> None:
    """Print a row for each way of weighing: how many are right, and how many at most."""
    parsed = _parser().parse_args()
    queries = [
        each for each in read_queries(parsed.questions, parsed.split) if len(each.doc_ids) == 1
    ]
    found = asyncio.run(_leads(read_documents(parsed.corpus), queries))
    kinds = [(f"{fusion} of candidates", found[fusion]) for fusion in FUSIONS]
    every = found[ALL]
    kinds.append(("zscore of all documents", every))
    most = parsed.more or parsed.corpus
    if parsed.more:
        every = every.beside(asyncio.run(_leads(read_documents(most), queries))[ALL])
        kinds.append(("zscore of all documents, 2 libraries", every))
    if parsed.epochs:
        learned = every.beside(_tuned_leads(_sorted(most), queries, parsed.epochs))
        kinds.append(("the same and what an adapter learned", learned))
    for name, leads in kinds:
        _print(name, "weights from 0", leads, 0.0, parsed.limit_s)
    for fusion in FUSIONS:
        leads = found[fusion].by_coverage()
        _print(f"{fusion} of candidates", "any weights, by coverage", leads, -1.0, parsed.limit_s)


def most_right(leads: Leads, least: float, limit_s: float) -> tuple[int, int]:
    """How many questions some weights from `least` to 1 get right, and how many none exceed.

    Both are the same unless the search took more than `limit_s`.
    """
    values = leads.values / np.abs(leads.values).max()
    pairs, count = values.shape
    # Where a question counts, the others must be behind; where not, `slack` lets it go.
    slack = np.abs(values).sum(axis=1).max() + LEAD
    counted = np.zeros((pairs, leads.questions))
    counted[np.arange(pairs), leads.question] = -slack
    is_count = np.r_[np.zeros(count), np.ones(leads.questions)]
    solved = milp(
        -is_count,
        constraints=LinearConstraint(np.hstack([values, counted]), LEAD - slack, np.inf),
        integrality=is_count,
        bounds=Bounds(np.where(is_count, 0, least), 1),
        options={"time_limit": limit_s},
    )
    if solved.x is None:
        return 0, leads.questions - leads.lost
    behind = np.unique(leads.question[values @ solved.x[:count] <= 0])
    found = leads.questions - leads.lost - len(behind)
    return found, max(found, int(np.floor(-solved.mip_dual_bound + 1e-6)) - leads.lost)


def _print(name: str, weights: str, leads: Leads, least: float, limit_s: float) -> None:
    found, bound = most_right(leads, least, limit_s)
    sys.stdout.write(f"{name}, {weights}: {found} of {leads.questions}, at most {bound}\n")
    sys.stdout.flush()


async def _leads(documents: Sequence[Document], queries: Sequence[Query]) -> dict[str, Leads]:
    """By fusion as the product ranks its candidates, and by `ALL` over all documents."""
    embedder = open_embedder(EmbedderSpec())
    snapshot = await _snapshot(documents, embedder.identity.dim)
    every = np.arange(len(snapshot.entries))
    rows: dict[str, list[_Lead]] = {name: [] for name in (*FUSIONS, ALL)}
    for query in queries:
        (embedding,) = embedder.embed([query.text])
        found = score_rows(snapshot, embedding, terms(query.text), None)
        candidates = np.sort(rank(snapshot, embedding, found, "hybrid", "zscore").documents)
        near = compare(snapshot, embedding, found, "hybrid", candidates, texts_too=True)
        of_all = compare(snapshot, embedding, found, "hybrid", every, texts_too=True)
        (doc_id,) = query.doc_ids
        for name, leads in rows.items():
            signals = of_all if name == ALL else near
            documents = signals[0].documents
            is_true = np.array([snapshot.entries[at].doc_id == doc_id for at in documents])
            leads.append(_lead(name, signals, is_true, found.coverage))
    return {name: _together(leads) for name, leads in rows.items()}


def _tuned_leads(documents: Sequence[Document], queries: Sequence[Query], epochs: int) -> Leads:
    """What an adapter learns of the documents, as the product makes it."""
    learned, embedder = _tuned(documents, epochs)
    leads = []
    for query, embedding in zip(queries, embedder.embed([q.text for q in queries]), strict=True):
        is_true = np.array([each.doc_id in query.doc_ids for each in documents])
        values = fuse("zscore", [learned.log_probabilities(embedding.vector)], [1])[:, None]
        leads.append(_Lead(values[is_true] - values[~is_true], 0.0, is_lost=False))
    return _together(leads)


def _tuned(documents: Sequence[Document], epochs: int) -> tuple[Learned, Embedder]:
    tokenizer, encoder = load_model(str(model_folder()))
    tuned = tune(tokenizer, encoder, documents, Course(epochs), lambda _done, _total: None)
    learned = Learned.of(tuned.head, [each.doc_id for each in documents])
    assert learned is not None
    with tempfile.TemporaryDirectory(prefix="kvswarm-ceiling-") as folder:
        path = Path(folder) / "adapter.safetensors"
        write_adapter(path, WEIGHTS, tuned.changes, tuned.head)
        return learned, open_embedder(EmbedderSpec(adapter=path))


def _sorted(corpus: Path) -> list[Document]:
    """In the order of a snapshot's entries."""
    return sorted(read_documents(corpus), key=lambda each: each.doc_id)


def _lead(
    name: str, signals: Sequence[Signals], is_true: npt.NDArray[np.bool_], coverage: float
) -> _Lead:
    fusion = "zscore" if name == ALL else name
    parts = [part for each in signals for part in each.parts]
    scores = np.stack([fuse(fusion, [part], [1]) for part in parts], axis=1)
    values = scores[is_true] - scores[~is_true] if is_true.any() else scores[:0]
    return _Lead(values.astype(np.float64), coverage, not is_true.any())


async def _snapshot(documents: Sequence[Document], dim: int) -> Snapshot:
    with tempfile.TemporaryDirectory(prefix="kvswarm-ceiling-") as folder:
        async with open_library(Settings(path=Path(folder))) as library:
            await library.ingest(documents)
            entries = [library.entry(doc_id) for doc_id in library.doc_ids]
    return Snapshot.of([each for each in entries if each], dim)


def _together(leads: Sequence[_Lead]) -> Leads:
    counts = [len(each.values) for each in leads]
    return Leads(
        np.concatenate([each.values for each in leads]),
        np.repeat(np.arange(len(leads)), counts),
        np.repeat([each.coverage for each in leads], counts),
        len(leads),
        sum(each.is_lost for each in leads),
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--corpus", type=Path, default=DEMO)
    parser.add_argument("--questions", type=Path, default=DEMO)
    parser.add_argument("--split", default="test")
    parser.add_argument("--more", type=Path, help="the same documents with more expansions")
    parser.add_argument(
        "--epochs", type=int, default=0, help="let an adapter learn --more or --corpus, too"
    )
    parser.add_argument("--limit-s", type=float, default=300.0, help="of each search")
    return parser


if __name__ == "__main__":
    main()
