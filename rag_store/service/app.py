"""The routes, and what every request goes through."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST

from rag_store.service.queries import Queries
from rag_store.service.refusal import Handler, Refusal, guarded, refusing
from rag_store.service.shelving import Shelving
from rag_store.service.state import State

_PING_TIMEOUT_S = 5


def make_app(state: State, loopback: bool = True) -> web.Application:
    """All routes of the service; with `loopback` it is to be called by such names alone."""
    queries, shelving, watch = Queries(state), Shelving(state), Watch(state)
    app = web.Application(
        middlewares=[counted(state), refusing, guarded(loopback)],
        client_max_size=state.limits.body_bytes,
    )
    app.router.add_post("/v1/label", queries.label)
    app.router.add_post("/v1/retrieve", queries.retrieve)
    app.router.add_post("/v1/embeddings", queries.embed)
    app.router.add_post("/v1/documents", shelving.put)
    app.router.add_get("/v1/documents", shelving.list_all)
    app.router.add_get("/v1/documents/{doc_id:.+}", shelving.get)
    app.router.add_delete("/v1/documents/{doc_id:.+}", shelving.delete)
    app.router.add_get("/health", watch.health)
    app.router.add_get("/ready", watch.ready)
    app.router.add_get("/metrics", watch.metrics)
    return app


class Watch:
    """Handlers for those who watch over the service."""

    def __init__(self, state: State) -> None:
        self._state = state

    async def health(self, request: web.Request) -> web.Response:
        """The process lives and its event loop turns."""
        return web.json_response({"status": "ok"})

    async def ready(self, request: web.Request) -> web.Response:
        """The library is open and Chroma answers."""
        library = self._state.library
        try:
            await asyncio.wait_for(library.ping(), _PING_TIMEOUT_S)
        except TimeoutError:
            message = f"Chroma has not answered in {_PING_TIMEOUT_S} s"
            raise Refusal(503, message, "store_unavailable") from None
        return web.json_response(
            {
                "status": "ready",
                "collection": library.settings.collection,
                "embedder": library.fingerprint.embedder,
                **asdict(library.size),
                "corpus_digest": await library.corpus_digest(),
                "threshold": library.threshold.threshold,
            }
        )

    async def metrics(self, request: web.Request) -> web.Response:
        """Prometheus' text."""
        page, headers = self._state.metrics.page(), {"Content-Type": CONTENT_TYPE_LATEST}
        return web.Response(body=page, headers=headers)


def counted(state: State) -> Callable[..., Awaitable[web.StreamResponse]]:
    """A middleware that counts requests by the pattern of their route, and times them."""

    @web.middleware
    async def count(request: web.Request, handler: Handler) -> web.StreamResponse:
        since_s = time.perf_counter()
        response = await handler(request)
        resource = request.match_info.route.resource
        route = resource.canonical if resource else "unknown"
        state.metrics.request(route, response.status, time.perf_counter() - since_s)
        return response

    return count
