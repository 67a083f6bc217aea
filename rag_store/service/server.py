"""The process: listen, fill the library, serve until a signal, finish what is in flight."""

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

from aiohttp import web

from rag_store.documents import Document
from rag_store.errors import RagError, RagUsageError
from rag_store.library import Library, open_library
from rag_store.service.foreign import is_loopback
from rag_store.service.handlers import Handlers, Limits
from rag_store.service.refusal import guarded, refusing
from rag_store.settings import Settings

# After the drain, for threads that are in the middle of something.
_GRACE_S, _TOGETHER_S = 2.0, 0.2
"""Whoever sends two signals as close together means one."""


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """Where to listen (port 0: a free one), and how long requests may finish after a signal.

    Before it serves, `corpus` is put into the library; with `prune` it holds nothing else.
    """

    bind: str = "127.0.0.1"
    port: int = 8090
    drain_s: float = 10.0
    limits: Limits = field(default_factory=Limits)
    corpus: tuple[Document, ...] = ()
    prune: bool = False


def make_app(handlers: Handlers, loopback: bool = True) -> web.Application:
    """All routes of the service; with `loopback` it is to be called by such names alone."""
    app = web.Application(
        middlewares=[handlers.metrics.counting, refusing, guarded(loopback)],
        client_max_size=handlers.limits.body_bytes,
    )
    app.router.add_post("/v1/label", handlers.label)
    app.router.add_post("/v1/retrieve", handlers.retrieve)
    app.router.add_post("/v1/embeddings", handlers.embed)
    app.router.add_post("/v1/documents", handlers.put)
    app.router.add_get("/v1/documents", handlers.list_all)
    app.router.add_get("/v1/documents/{doc_id:.+}", handlers.get)
    app.router.add_delete("/v1/documents/{doc_id:.+}", handlers.delete)
    app.router.add_get("/health", handlers.health)
    app.router.add_get("/ready", handlers.ready)
    app.router.add_get("/metrics", handlers.exposition)
    return app


async def serve(
    settings: Settings, options: ServerOptions, announce: Callable[[str, Library], None]
) -> None:
    """Serve until SIGTERM or SIGINT; `announce` gets the url once the library is open and filled.

    Raises RagUsageError where the address is taken, and as `open_library` and `Library.ingest`.
    """
    handlers = Handlers(options.limits)
    app = make_app(handlers, is_loopback(options.bind))
    runner = web.AppRunner(
        app, access_log=None, shutdown_timeout=options.drain_s, handle_signals=False
    )
    await runner.setup()
    lag = asyncio.create_task(handlers.metrics.watch_loop())
    try:
        with _stop_signal(options.drain_s) as stop:
            url = await _listen(runner, options)
            async with open_library(settings) as library:
                if options.corpus:
                    await _fill(library, options, stop)
                await library.prepare()
                if not stop.is_set():
                    handlers.opened = library
                    announce(url, library)
                await stop.wait()
                # Before the library closes: requests in flight still need it.
                await runner.cleanup()
    finally:
        lag.cancel()
        await runner.cleanup()


async def _fill(library: Library, options: ServerOptions, stop: asyncio.Event) -> None:
    """Put the documents in; a signal ends this between two of them."""

    def told(done: int, total: int) -> None:
        if stop.is_set():
            raise RagError("interrupted")

    try:
        await library.ingest(options.corpus, told, prune=options.prune)
    except RagError:
        if not stop.is_set():
            raise


async def _listen(runner: web.AppRunner, options: ServerOptions) -> str:
    # A blank would be all addresses.
    site = web.TCPSite(runner, options.bind.strip() or ".", options.port)
    try:
        await site.start()
    # UnicodeError: a name with an empty part, or one longer than names have.
    except (OSError, OverflowError, UnicodeError) as error:
        raise RagUsageError(
            f"cannot listen on {options.bind}:{options.port}:"
            f" {getattr(error, 'strerror', None) or error}: choose another --bind or --port"
        ) from error
    host, port = runner.addresses[0][:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


@contextmanager
def _stop_signal(drain_s: float) -> Iterator[asyncio.Event]:
    """Set at the first SIGTERM or SIGINT; a second one ends the process as it always does."""
    loop, event = asyncio.get_running_loop(), asyncio.Event()
    # A thread that waits for a far embedder cannot be cancelled; what is stored survives this.
    last = threading.Timer(drain_s + _GRACE_S, os._exit, [1])
    last.daemon = True

    def restore() -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)

    def stop() -> None:
        if event.is_set():
            return
        ending.callback(loop.call_later(_TOGETHER_S, restore).cancel)
        last.start()
        event.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    with ExitStack() as ending:
        ending.callback(restore)
        ending.callback(last.cancel)
        yield event
