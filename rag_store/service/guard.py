"""Web pages in a user's browser, which reach addresses that their authors do not, are kept out."""

import ipaddress
from collections.abc import Awaitable, Callable

from aiohttp import web
from yarl import URL

from rag_store.service.refusal import Problem, Refusal
from rag_store.service.refusing import Handler


def guarded(loopback: bool) -> Callable[..., Awaitable[web.StreamResponse]]:
    """A middleware that refuses (403) the pages of others, which browsers name in Origin.

    With `loopback` it also refuses names that are not this machine's: a page can let its own name
    lead here, and is then no other's (DNS rebinding).
    """

    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        host, origin = request.headers.get("Host", ""), request.headers.get("Origin")
        if loopback and not _is_own(host):
            message = f"Host is {host[:80]!a}: ask localhost, or --bind to an address of that name"
            raise Refusal(Problem(403, message, "foreign_host"))
        if origin is not None and not _is_same(origin, host):
            message = f"Origin is {origin[:80]!a}: send the one of the Host that is asked, or none"
            raise Refusal(Problem(403, message, "foreign_origin"))
        return await handler(request)

    return guard


def is_loopback(name: str) -> bool:
    """Whether the name or address always leads to this machine itself."""
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return name.lower() == "localhost"


def _is_own(host: str) -> bool:
    try:
        return is_loopback(URL(f"http://{host}").host or "")
    except ValueError:
        return False


def _is_same(origin: str, host: str) -> bool:
    """Whether they name the same host and port; one that is left out is that of the scheme."""
    try:
        page = URL(origin)
        own = URL(f"{page.scheme}://{host}")
        return page.host is not None and (page.host, page.port) == (own.host, own.port)
    except ValueError:
        return False
