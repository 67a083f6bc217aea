"""`kvswarm rag serve`."""

import argparse
import logging
import sys
from pathlib import Path

from rag_store.cli.index import told_documents
from rag_store.cli.options import Parser, add_library_options, number, settings_of
from rag_store.cli.output import fitted
from rag_store.errors import RagUsageError
from rag_store.library import Library
from rag_store.service.foreign import is_loopback
from rag_store.service.server import Filling, ServerOptions, serve
from rag_store.service.state import Limits

_OPTIONS, _LIMITS = ServerOptions(), Limits()


async def serve_command(arguments: list[str]) -> int:
    """Answer over HTTP until SIGTERM or Ctrl-C; requests in flight are finished."""
    parsed = _parser().parse_args(arguments)
    _log_to_stderr()
    if not is_loopback(parsed.bind):
        print(
            f"kvswarm rag: whoever reaches {parsed.bind} can read and change the library:"
            " there is no password",
            file=sys.stderr,
        )
    limits = Limits(
        queue=parsed.queue, batch=min(parsed.batch, parsed.queue), body_bytes=parsed.body_bytes
    )
    options = ServerOptions(parsed.bind, parsed.port, parsed.drain, limits)
    await serve(settings_of(parsed), options, _filling(parsed), _announce)
    return 0


def _filling(parsed: argparse.Namespace) -> Filling:
    if parsed.corpus is not None:
        documents = told_documents(parsed.corpus)
        return Filling(documents, parsed.prune, parsed.renew)
    if parsed.prune or parsed.renew:
        raise RagUsageError("--prune and --renew say how --corpus is put in: give that too")
    return Filling()


def _log_to_stderr() -> None:
    """Warnings and errors only; some libraries set loggers of their own to DEBUG."""
    handler = logging.StreamHandler()
    handler.setLevel(logging.WARNING)
    logging.basicConfig(handlers=[handler], format="%(levelname)s %(name)s: %(message)s")
    # Tracebacks about clients that speak no HTTP; what fails in a handler is logged by ours.
    logging.getLogger("aiohttp.server").setLevel(logging.CRITICAL)


def _announce(url: str, library: Library) -> None:
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
    parser.add_argument("--bind", default=_OPTIONS.bind, help="address to listen on")
    port = number(int, 0, 65_535)
    parser.add_argument("--port", type=port, default=_OPTIONS.port, help="0: a free one")
    parser.add_argument(
        "--drain",
        type=number(float, 0, 3600),
        default=_OPTIONS.drain_s,
        metavar="SECONDS",
        help="how long requests in flight may finish after a signal",
    )
    many = number(int, 1, 1_000_000_000)
    parser.add_argument(
        "--queue", type=many, default=_LIMITS.queue, help="queries in work; more are told 429"
    )
    parser.add_argument("--batch", type=many, default=_LIMITS.batch, help="items in one request")
    parser.add_argument(
        "--body-bytes", type=many, default=_LIMITS.body_bytes, help="larger bodies are told 413"
    )
    parser.add_argument(
        "--corpus", type=Path, metavar="PATH", help="index these documents first, as `index` does"
    )
    parser.add_argument(
        "--prune", action="store_true", help="remove documents that are not in --corpus"
    )
    parser.add_argument(
        "--renew",
        action="store_true",
        help="make a library anew that was made with other settings",
    )
    add_library_options(parser)
    return parser
