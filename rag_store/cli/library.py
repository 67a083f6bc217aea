"""`kvswarm rag index` and `kvswarm rag serve`: documents into a library, and answers over HTTP."""

import logging
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from rag_store.cli.options import Parser, add_option, number
from rag_store.cli.output import complaint, fitted
from rag_store.document_index import Progress as Told
from rag_store.documents import Document
from rag_store.errors import RagError, RagUsageError
from rag_store.library import Library, open_library
from rag_store.readers import read_documents, unread_note
from rag_store.service.foreign import is_loopback
from rag_store.service.handlers import Limits
from rag_store.service.server import ServerOptions, serve

_OPTIONS, _LIMITS = ServerOptions(), Limits()


async def index_command(arguments: list[str]) -> int:
    """Put documents into the library; safe to repeat after any interruption."""
    parser = Parser("index", "put documents into the library; what is there unchanged is left")
    add = parser.add_argument
    formats = "a folder of .txt and .md, a .jsonl file, a BEIR folder, SQuAD-style .json"
    add("source", type=Path, metavar="PATH", help=formats)
    add("--rebuild", action="store_true", help="drop the collection and make it anew")
    add("--prune", action="store_true", help="remove documents that are not at PATH")
    parsed, settings = parser.read(arguments)
    documents = told_documents(parsed.source)
    async with open_library(settings) as library:
        with shown_progress("indexing") as told:
            report = await library.ingest(documents, told, prune=parsed.prune)
        size = library.size
    print(
        f"{report.added} added, {report.updated} updated, {report.unchanged} unchanged,"
        f" {report.removed} removed: {size}"
    )
    return 0


async def serve_command(arguments: list[str]) -> int:
    """Answer over HTTP until SIGTERM or Ctrl-C; requests in flight are finished."""
    parsed, settings = _serve_parser().read(arguments)
    _log_to_stderr()
    if parsed.corpus is None and (parsed.prune or parsed.renew):
        raise RagUsageError("--prune and --renew say how --corpus is put in: give that too")
    limits = Limits(parsed.queue, min(parsed.batch, parsed.queue), body_bytes=parsed.body_bytes)
    options = ServerOptions(
        bind=parsed.bind,
        port=parsed.port,
        drain_s=parsed.drain,
        limits=limits,
        corpus=() if parsed.corpus is None else told_documents(parsed.corpus),
        prune=parsed.prune,
    )
    await serve(settings, options, partial(_announce, parsed.bind))
    return 0


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


def _log_to_stderr() -> None:
    """Warnings and errors only; some libraries set loggers of their own to DEBUG."""
    handler = logging.StreamHandler()
    handler.setLevel(logging.WARNING)
    logging.basicConfig(handlers=[handler], format="%(levelname)s %(name)s: %(message)s")
    # Tracebacks about clients that speak no HTTP; what fails in a handler is logged by ours.
    logging.getLogger("aiohttp.server").setLevel(logging.CRITICAL)


def _announce(bind: str, url: str, library: Library) -> None:
    size = library.size
    print(fitted(f"serving {size} at {url} until Ctrl-C", sys.stdout), flush=True)
    if not is_loopback(bind):
        reached = f"whoever reaches {bind} can read and change the library: there is no password"
        print(complaint(reached, "kvswarm rag"), file=sys.stderr)
    if not size.documents:
        filled = "fill it with `kvswarm rag index PATH` or POST /v1/documents"
        print(complaint(f"the library is empty: {filled}", "kvswarm rag"), file=sys.stderr)


def _serve_parser() -> Parser:
    parser = Parser("serve", "answer over HTTP until Ctrl-C")
    port, drain_s, many = number(int, 0, 65_535), number(float, 0, 3600), number(int, 1, 10**9)
    drain = "how long requests in flight may finish after a signal"
    add_option(parser, "--bind", _OPTIONS.bind, "address to listen on")
    add_option(parser, "--port", _OPTIONS.port, "0: a free one", type=port)
    add_option(parser, "--drain", _OPTIONS.drain_s, drain, type=drain_s, metavar="SECONDS")
    add_option(parser, "--queue", _LIMITS.queue, "queries in work; more are told 429", type=many)
    add_option(parser, "--batch", _LIMITS.batch, "items in one request", type=many)
    larger, first = "larger bodies are told 413", "index these documents first, as `index` does"
    other = "make a library anew that was made with other settings"
    add_option(parser, "--body-bytes", _LIMITS.body_bytes, larger, type=many)
    add_option(parser, "--corpus", None, first, type=Path, metavar="PATH")
    add = parser.add_argument
    add("--prune", action="store_true", help="remove documents that are not in --corpus")
    add("--renew", action="store_true", help=other)
    return parser
