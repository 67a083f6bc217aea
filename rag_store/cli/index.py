"""`kvswarm rag index PATH`."""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from rag_store.cli.options import Parser, add_library_options, settings_of
from rag_store.cli.output import complaint
from rag_store.documents import Document
from rag_store.errors import RagError
from rag_store.ingest import Progress as Told
from rag_store.library import open_library
from rag_store.readers import read_documents, unread_note


async def index_command(arguments: list[str]) -> int:
    """Put documents into the library; safe to repeat after any interruption."""
    parsed = _parser().parse_args(arguments)
    settings = settings_of(parsed)
    documents = told_documents(parsed.source)
    async with open_library(settings, rebuild=parsed.rebuild) as library:
        with shown_progress("indexing") as told:
            report = await library.ingest(documents, told, prune=parsed.prune)
        size = library.size
    print(
        f"{report.added} added, {report.updated} updated, {report.unchanged} unchanged,"
        f" {report.removed} removed: {size}"
    )
    return 0


def _parser() -> Parser:
    parser = Parser("index", "put documents into the library; what is there unchanged is left")
    add = parser.add_argument
    formats = "a folder of .txt and .md, a .jsonl file, a BEIR folder, SQuAD-style .json"
    add("source", type=Path, metavar="PATH", help=formats)
    add("--rebuild", action="store_true", help="drop the collection and make it anew")
    add("--prune", action="store_true", help="remove documents that are not at PATH")
    add_library_options(parser)
    return parser


def told_documents(source: Path) -> tuple[Document, ...]:
    """The documents there; what else lies there is named on stderr. Raises CorpusError."""
    documents = read_documents(source)
    if note := unread_note(source):
        print(complaint(note, "kvswarm rag"), file=sys.stderr)
    return documents


@contextmanager
def shown_progress(verb: str) -> Iterator[Told]:
    """A bar on stderr where that is a terminal; what to call from any thread."""
    columns = (TextColumn(verb), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = Console(file=sys.stderr)
    left = threading.Event()
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task(verb, total=None)

        def told(done: int, total: int) -> None:
            # After Ctrl-C nobody waits for the thread that works on; this ends it.
            if left.is_set():
                raise RagError("interrupted")
            progress.update(task, completed=done, total=total)

        try:
            yield told
        finally:
            left.set()
