"""Web pages in a user's browser, which reach addresses that their authors do not, are kept out."""

from collections.abc import Awaitable, Callable

from aiohttp import web

from rag_store.service.foreign import ANY, OwnNames, RequestSource
from rag_store.service.refusal import Problem, Refusal
from rag_store.service.refusing import Handler


def guarded(loopback: bool) -> Callable[..., Awaitable[web.StreamResponse]]:
    """A middleware that refuses (403) the pages of others, and with `loopback` their names for us.

    Of a service that other machines reach nobody knows all names: there any Host will do.
    """
    names = OwnNames("localhost", () if loopback else (ANY,), "--bind to an address of")

    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        refusal = names.refusal(_source(request))
        if refusal is not None:
            raise Refusal(Problem(403, refusal.message, refusal.code))
        return await handler(request)

    return guard


def _source(request: web.Request) -> RequestSource:
    def values(name: str) -> list[str]:
        return request.headers.getall(name, [])

    return RequestSource(
        method=request.method,
        target=request.raw_path,
        hosts=values("Host"),
        origins=values("Origin"),
        fetch_sites=values("Sec-Fetch-Site"),
        fetch_modes=values("Sec-Fetch-Mode"),
        fetch_dests=values("Sec-Fetch-Dest"),
    )
