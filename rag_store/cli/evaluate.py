"""`kvswarm rag eval`."""

import argparse
import json
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from rag_store.cli.baselines import baselines
from rag_store.cli.eval_table import as_table
from rag_store.cli.figures import Figures, SizeFigures, as_json
from rag_store.cli.index import shown_progress, told_documents
from rag_store.cli.options import Parser, add_library_options, add_qrels_option, settings_of
from rag_store.cli.output import fitted
from rag_store.documents import Document, Query
from rag_store.errors import RagUsageError
from rag_store.evaluation import compare_search, evaluate
from rag_store.library import Library, filled_library, open_library
from rag_store.readers import read_judged, read_queries
from rag_store.settings import Settings

# So many queries say how well the index recalls; more would only take longer.
_COMPARED = 200


@dataclass(frozen=True, slots=True)
class Material:
    """What is asked, and of which documents; without `corpus` of those in the library."""

    queries: tuple[Query, ...]
    unanswerable: tuple[Query, ...]
    corpus: tuple[Document, ...]
    distractors: tuple[Document, ...]


async def eval_command(arguments: list[str]) -> int:
    """Label questions whose answers are known, and print how that went."""
    parsed = _parser().parse_args(arguments)
    material = _read(parsed)
    with tempfile.TemporaryDirectory(prefix="kvswarm-eval-") as folder:
        figures = await _measure(settings_of(parsed), material, Path(folder))
    text = json.dumps(as_json(figures)) if parsed.json else fitted(as_table(figures), sys.stdout)
    print(text)
    return 0


def strangers(paths: Sequence[Path], split: str = "") -> tuple[Query, ...]:
    """Queries of all files, as ones that no document answers. Raises CorpusError.

    One without a kind is of the kind that its file is named after.
    """
    return tuple(
        replace(query, doc_ids=(), kind=query.kind or path.stem)
        for path in paths
        for query in read_queries(path, split)
    )


def _parser() -> Parser:
    parser = Parser("eval", "how often labels are right, strangers are refused, and how fast")
    parser.add_argument("--questions", type=Path, required=True, help="with their true documents")
    add_qrels_option(parser)
    parser.add_argument(
        "--split", default="", help="only questions with this in their field split, as dev or test"
    )
    parser.add_argument(
        "--unanswerable",
        type=Path,
        action="append",
        metavar="FILE",
        help="questions no document answers; may be given several times",
    )
    parser.add_argument("--corpus", type=Path, help="use these documents, not those in the library")
    parser.add_argument(
        "--distractors", type=Path, help="documents nobody asks for, added to --corpus in steps"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object")
    add_library_options(parser)
    return parser


def _read(parsed: argparse.Namespace) -> Material:
    if parsed.distractors and not parsed.corpus:
        raise RagUsageError("--distractors needs --corpus: they are not put into your library")
    material = Material(
        read_judged(parsed.questions, parsed.split, parsed.qrels),
        strangers(parsed.unanswerable or [], parsed.split),
        told_documents(parsed.corpus) if parsed.corpus else (),
        told_documents(parsed.distractors) if parsed.distractors else (),
    )
    _check_apart(material, parsed)
    return material


def _check_apart(material: Material, parsed: argparse.Namespace) -> None:
    if both := sorted(_ids(material.corpus) & _ids(material.distractors)):
        raise RagUsageError(
            f"{parsed.distractors} and {parsed.corpus} both have a document {both[0]!a}, and one"
            " would take the other's place: rename it in --distractors, or leave it out"
        )


def _ids(documents: Sequence[Document]) -> set[str]:
    return {document.doc_id for document in documents}


async def _measure(settings: Settings, material: Material, folder: Path) -> Figures:
    used = settings
    if material.corpus:
        used = replace(settings, path=folder / "default", chroma_url="")
    sizes = []
    for documents in _steps(material):
        # Opened anew each time: an open library keeps embeddings, and they are timed too.
        async with _filled(used, documents) as library:
            sizes.append(await _sized(library, material))
            threshold = library.threshold.threshold
            found = [library.document(doc_id) for doc_id in library.doc_ids]
    held = [document for document in found if document]
    others = await baselines(used, folder / "whole", held, sizes[-1].evaluation)
    return Figures(tuple(sizes), threshold, others)


@asynccontextmanager
async def _filled(settings: Settings, documents: Sequence[Document]) -> AsyncIterator[Library]:
    opened = open_library(settings) if documents else filled_library(settings)
    async with opened as library:
        if documents:
            with shown_progress("indexing") as told:
                await library.ingest(documents, told)
        yield library


async def _sized(library: Library, material: Material) -> SizeFigures:
    _check_known(material.queries, library)
    evaluation = await evaluate(library, material.queries, material.unanswerable)
    neighbours = await compare_search(library, material.queries[:_COMPARED])
    return SizeFigures(library.size, evaluation, neighbours)


def _steps(material: Material) -> list[Sequence[Document]]:
    """The corpus, then with an eighth, a quarter, a half, and all of the distractors."""
    others = material.distractors
    ends = sorted({len(others) // part for part in (8, 4, 2, 1)} - {0})
    return [material.corpus, *(others[:end] for end in ends)]


def _check_known(queries: Sequence[Query], library: Library) -> None:
    known = set(library.doc_ids)
    for query in queries:
        if query.doc_ids and not known.intersection(query.doc_ids):
            raise RagUsageError(
                f"question {query.query_id!a} is about {query.doc_ids[0]!a}, which is not among"
                f" the {len(known)} documents: name the --corpus the questions were made for"
            )
