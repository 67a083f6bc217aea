"""`kvswarm rag eval` and `kvswarm rag fit-threshold`: questions whose answers are known."""

import argparse
import json
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from rag_store.cli.figures import Baseline, Figures, SizeFigures, as_json, as_table
from rag_store.cli.library import shown_progress, told_documents
from rag_store.cli.options import Parser, add_option
from rag_store.cli.output import fitted
from rag_store.documents import Chunker, Document, Query
from rag_store.errors import RagUsageError
from rag_store.evaluation import Evaluation, QueryEstimate, evaluate
from rag_store.label import KEEP
from rag_store.library import Library, filled_library, open_library
from rag_store.readers import read_judged, read_queries
from rag_store.reranker import RerankerSpec
from rag_store.settings import Settings

# So many queries say how well the index recalls; more would only take longer.
_COMPARED = 200
# No document has so many: the chunk is the document, of which an embedder may cut the end off.
_WHOLE = Chunker(size_tokens=1_000_000_000, overlap_tokens=0)


@dataclass(frozen=True, slots=True)
class Material:
    """What is asked, and of which documents; without `corpus` of those in the library."""

    queries: tuple[Query, ...]
    unanswerable: tuple[Query, ...]
    corpus: tuple[Document, ...]
    distractors: tuple[Document, ...]


async def eval_command(arguments: list[str]) -> int:
    """Label questions whose answers are known, and print how that went."""
    parser = Parser("eval", "how often labels are right, strangers are refused, and how fast")
    add = parser.add_argument
    add("--questions", type=Path, required=True, help="with their true documents")
    _add_question_options(parser)
    strangers = "questions no document answers; may be given several times"
    add("--unanswerable", type=Path, action="append", metavar="FILE", help=strangers)
    add("--corpus", type=Path, help="use these documents, not those in the library")
    add("--distractors", type=Path, help="documents nobody asks for, added to --corpus in steps")
    add("--json", action="store_true", help="one JSON object")
    parsed, settings = parser.read(arguments)
    material = _read(parsed)
    with tempfile.TemporaryDirectory(prefix="kvswarm-eval-") as folder:
        figures = await _measure(settings, material, Path(folder))
    text = json.dumps(as_json(figures)) if parsed.json else fitted(as_table(figures), sys.stdout)
    print(text)
    return 0


async def fit_threshold_command(arguments: list[str]) -> int:
    """Decide anew when to refuse; kept beside the collection."""
    parser = Parser("fit-threshold", "decide anew when to refuse, and keep that in the library")
    parser.add_argument("answerable", type=Path, help="questions that documents answer")
    parser.add_argument("unanswerable", type=Path, help="questions that none answers")
    _add_question_options(parser)
    add_option(parser, "--keep", KEEP, "share of the answerable ones to be labelled")
    parsed, settings = parser.read(arguments)
    if not 0 < parsed.keep <= 1:
        raise RagUsageError(f"--keep is {parsed.keep}: give a share above 0, at most 1")
    judged = read_judged(parsed.answerable, parsed.split, parsed.qrels)
    answerable = [query for query in judged if query.doc_ids]
    unanswerable = _strangers([parsed.unanswerable], parsed.split)
    async with filled_library(settings, refit=True) as library:
        _check_known(answerable, library)
        made = await library.fit_threshold(answerable, unanswerable, parsed.keep)
        point = (await evaluate(library, answerable, unanswerable)).at_threshold(made.threshold)
    print(
        f"threshold {made.threshold:.3f}, fitted on {len(answerable)} answerable and"
        f" {len(unanswerable)} unanswerable queries: keeps {point.kept:.1%} of the first"
        f" ({point.right:.1%} of them labelled right), refuses {point.refused:.1%} of the second"
    )
    return 0


def _add_question_options(parser: Parser) -> None:
    judged = "judgements of the questions, as TREC's or BEIR's; only what is judged is asked"
    split = "only questions with this in their field split, as dev or test"
    add_option(parser, "--qrels", None, judged, type=Path, metavar="FILE")
    add_option(parser, "--split", "", split)


def _read(parsed: argparse.Namespace) -> Material:
    if parsed.distractors and not parsed.corpus:
        raise RagUsageError("--distractors needs --corpus: they are not put into your library")
    material = Material(
        read_judged(parsed.questions, parsed.split, parsed.qrels),
        _strangers(parsed.unanswerable or [], parsed.split),
        told_documents(parsed.corpus) if parsed.corpus else (),
        told_documents(parsed.distractors) if parsed.distractors else (),
    )
    known = {each.doc_id for each in material.corpus}
    if both := sorted(each.doc_id for each in material.distractors if each.doc_id in known):
        raise RagUsageError(
            f"{parsed.distractors} and {parsed.corpus} both have a document {both[0]!a}, and one"
            " would take the other's place: rename it in --distractors, or leave it out"
        )
    return material


def _strangers(paths: Sequence[Path], split: str) -> tuple[Query, ...]:
    """Queries that no document answers; one without a kind is of its file's. Raises CorpusError."""
    return tuple(
        replace(query, doc_ids=(), kind=query.kind or path.stem)
        for path in paths
        for query in read_queries(path, split)
    )


async def _measure(settings: Settings, material: Material, folder: Path) -> Figures:
    own = replace(settings, path=folder / "default", chroma_url="")
    used = own if material.corpus else settings
    sizes = []
    for documents in _steps(material):
        # Opened anew each time: an open library keeps embeddings, and they are timed too.
        async with _filled(used, documents) as library:
            _check_known(material.queries, library)
            evaluation = await evaluate(library, material.queries, material.unanswerable)
            asked = [await library.neighbours(each.text) for each in material.queries[:_COMPARED]]
            sizes.append(SizeFigures(library.size, evaluation, tuple(asked)))
            threshold = library.threshold.threshold
            held = [each for each in map(library.document, library.doc_ids) if each]
    others = await _baselines(used, folder / "whole", held, sizes[-1].evaluation)
    return Figures(tuple(sizes), threshold, others)


def _steps(material: Material) -> list[Sequence[Document]]:
    """The corpus, then with an eighth, a quarter, a half, and all of the distractors."""
    others = material.distractors
    ends = sorted({len(others) // part for part in (8, 4, 2, 1)} - {0})
    return [material.corpus, *(others[:end] for end in ends)]


@asynccontextmanager
async def _filled(settings: Settings, documents: Sequence[Document]) -> AsyncIterator[Library]:
    opened = open_library(settings) if documents else filled_library(settings)
    async with opened as library:
        if documents:
            with shown_progress("indexing") as told:
                await library.ingest(documents, told)
        yield library


def _check_known(queries: Sequence[Query], library: Library) -> None:
    known = set(library.doc_ids)
    for query in queries:
        if query.doc_ids and not known.intersection(query.doc_ids):
            raise RagUsageError(
                f"question {query.query_id!a} is about {query.doc_ids[0]!a}, which is not among"
                f" the {len(known)} documents: give those that the questions were made for"
            )


async def _baselines(
    settings: Settings, folder: Path, documents: Sequence[Document], ours: Evaluation
) -> dict[str, Baseline]:
    """What ours has to beat: one vector a document, chunk vectors alone, BM25 alone, the best
    possible; where a reranker is asked, also ours without it.

    `settings` are of the library that gave `ours`, which must be closed and hold `documents`;
    `folder` must be empty. Raises as `open_library`.
    """
    unread = replace(settings, reranker=RerankerSpec())
    whole = replace(unread, path=folder, chroma_url="", chunker=_WHOLE, retriever="dense")
    arms: dict[str, tuple[Settings, Sequence[Document]]] = {
        "whole_document": (whole, [replace(each, questions=()) for each in documents]),
        "dense": (replace(unread, retriever="dense"), ()),
        "bm25": (replace(unread, retriever="bm25"), ()),
    }
    if settings.reranker.url:
        arms["without_reranking"] = unread, ()
    queries = [each.query for each in ours.answerable]
    found: dict[str, Evaluation] = {}
    for name, (arm, held) in arms.items():
        async with _filled(arm, held) as library:
            found[name] = await evaluate(library, queries)
    rows = {name: Baseline(each.top(1), ours.against(each)) for name, each in found.items()}
    return {**rows, "oracle": Baseline(QueryEstimate.share([True] * len(queries)), None)}
