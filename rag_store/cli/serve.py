"""`kvswarm rag serve`."""

import logging
import sys
from functools import partial
from pathlib import Path

from rag_store.cli.index import told_documents
from rag_store.cli.options import Parser, add_library_options, add_option, number, settings_of
from rag_store.cli.output import fitted
from rag_store.errors import RagUsageError
from rag_store.library import Library
from rag_store.service.foreign import is_loopback
from rag_store.service.handlers import Limits
from rag_store.service.server import Filling, ServerOptions, serve

_OPTIONS, _LIMITS = ServerOptions(), Limits()


async def serve_command(arguments: list[str]) -> int:
    """Answer over HTTP until SIGTERM or Ctrl-C; requests in flight are finished."""
    parsed = _parser().parse_args(arguments)
    _log_to_stderr()
    batch = min(parsed.batch, parsed.queue)
    limits = Limits(parsed.queue, batch, body_bytes=parsed.body_bytes)
    options = ServerOptions(parsed.bind, parsed.port, parsed.drain, limits)
    settings = settings_of(parsed)
    if parsed.corpus is None and (parsed.prune or parsed.renew):
        raise RagUsageError("--prune and --renew say how --corpus is put in: give that too")
    documents = () if parsed.corpus is None else told_documents(parsed.corpus)
    filling = Filling(documents, parsed.prune, parsed.renew)
    await serve(settings, options, filling, partial(_announce, parsed.bind))
    return 0


def _log_to_stderr() -> None:
    """Warnings and errors only; some libraries set loggers of their own to DEBUG."""
    handler = logging.StreamHandler()
    handler.setLevel(logging.WARNING)
    logging.basicConfig(handlers=[handler], format="%(levelname)s %(name)s: %(message)s")
    # Tracebacks about clients that speak no HTTP; what fails in a handler is logged by ours.
    logging.getLogger("aiohttp.server").setLevel(logging.CRITICAL)


def _announce(bind: str, url: str, library: Library) -> None:
    if not is_loopback(bind):
        print(
            f"kvswarm rag: whoever reaches {bind} can read and change the library:"
            " there is no password",
            file=sys.stderr,
        )
    size = library.size
    print(fitted(f"serving {size} at {url} until Ctrl-C", sys.stdout), flush=True)
    if not size.documents:
        print(
            "kvswarm rag: the library is empty: fill it with `kvswarm rag index PATH`"
            " or POST /v1/documents",
            file=sys.stderr,
        )


def _parser() -> Parser:
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
    add_library_options(parser)
    return parser
