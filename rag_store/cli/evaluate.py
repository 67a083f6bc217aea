"""`kvswarm rag eval`."""

import json
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from rag_store.cli.baselines import baselines
from rag_store.cli.figures import Figures, SizeFigures, as_json, as_table
from rag_store.cli.index import shown_progress
from rag_store.cli.options import Parser, add_library_options, settings_of
from rag_store.documents import Document, Query
from rag_store.errors import RagUsageError
from rag_store.evaluation import evaluate
from rag_store.library import Library, open_library
from rag_store.readers import read_documents, read_queries
from rag_store.settings import Settings


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
    material = _read(parsed.questions, parsed.unanswerable or [], parsed.corpus, parsed.distractors)
    with tempfile.TemporaryDirectory(prefix="kvswarm-eval-") as folder:
        figures = await _measure(settings_of(parsed), material, Path(folder))
    print(json.dumps(as_json(figures)) if parsed.json else as_table(figures))
    return 0


def strangers(paths: Sequence[Path]) -> tuple[Query, ...]:
    """Queries of all files, as ones that no document answers. Raises CorpusError."""
    return tuple(
        Query(query.query_id, query.text) for path in paths for query in read_queries(path)
    )


def _parser() -> Parser:
    parser = Parser("eval", "how often labels are right, strangers are refused, and how fast")
    parser.add_argument("--questions", type=Path, required=True, help="with their true documents")
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


def _read(
    questions: Path, unanswerable: Sequence[Path], corpus: Path | None, distractors: Path | None
) -> Material:
    if distractors and not corpus:
        raise RagUsageError("--distractors needs --corpus: they are not put into your library")
    return Material(
        read_queries(questions),
        strangers(unanswerable),
        read_documents(corpus) if corpus else (),
        read_documents(distractors) if distractors else (),
    )


async def _measure(settings: Settings, material: Material, folder: Path) -> Figures:
    sizes = []
    async with _library(settings, material, folder / "default") as library:
        _check_known(material.queries, library)
        for documents in _steps(material.distractors):
            await library.ingest(documents)
            evaluation = await evaluate(library, material.queries, material.unanswerable)
            sizes.append(SizeFigures(library.size, evaluation))
        threshold = library.threshold.threshold
        found = [library.document(doc_id) for doc_id in library.doc_ids]
    held = [document for document in found if document]
    others = await baselines(settings, folder, held, material.queries)
    return Figures(tuple(sizes), threshold, others)


@asynccontextmanager
async def _library(settings: Settings, material: Material, path: Path) -> AsyncIterator[Library]:
    local = replace(settings, path=path, chroma_url="") if material.corpus else settings
    async with open_library(local) as library:
        if material.corpus:
            with shown_progress("indexing") as told:
                await library.ingest(material.corpus, told)
        yield library


def _steps(distractors: Sequence[Document]) -> list[Sequence[Document]]:
    """None, then an eighth, a quarter, a half, and all of the distractors."""
    ends = sorted({len(distractors) // part for part in (8, 4, 2, 1)} - {0})
    return [distractors[:end] for end in (0, *ends)]


def _check_known(queries: Sequence[Query], library: Library) -> None:
    known = set(library.doc_ids)
    for query in queries:
        if query.doc_ids and not known.intersection(query.doc_ids):
            raise RagUsageError(
                f"question {query.query_id!a} is about {query.doc_ids[0]!a}, which is not among"
                f" the {len(known)} documents: name the --corpus the questions were made for"
            )
