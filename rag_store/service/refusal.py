"""What the service says no with, and to whom: a status and one sentence in OpenAI's form."""

import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from aiohttp import web

from rag_store import errors
from rag_store.service.foreign import ANY, OwnNames, RequestSource

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Result = TypeVar("Result")

_TYPES = {429: "rate_limit_error", **dict.fromkeys((500, 502, 503), "server_error")}
# The first that an error is an instance of says what it becomes.
_STATUS_AND_CODE: tuple[tuple[type[errors.RagError], int, str], ...] = (
    (errors.QueryError, 422, "invalid_query"),
    (errors.RagUsageError, 422, "invalid_value"),
    (errors.EmbedderRefusal, 502, "embedder_refused"),
    (errors.EmbedderError, 503, "embedder_unavailable"),
    (errors.RerankerRefusal, 502, "reranker_refused"),
    (errors.RerankerError, 503, "reranker_unavailable"),
    (errors.StoreError, 503, "store_unavailable"),
    (errors.RagError, 500, "internal_error"),
)
_log = logging.getLogger(__name__)


class Refusal(Exception):
    """Ends a request with a status and a message; `param` is the field of the body at fault."""

    def __init__(
        self, status: int, message: str, code: str, param: str | None = None, **headers: str
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.param = status, code, param
        self.headers = {"Retry-After": "1", **headers} if status in (429, 503) else headers

    def as_json(self) -> dict[str, str | None]:
        """The inside of OpenAI's `error` object."""
        kind = _TYPES.get(self.status, "invalid_request_error")
        return {"message": str(self), "type": kind, "param": self.param, "code": self.code}


def invalid(message: str, param: str | None, code: str = "invalid_value") -> Refusal:
    """A field of a well-formed body is not what it must be."""
    return Refusal(422, message, code, param)


def refusal_of(error: errors.RagError) -> Refusal:
    """The library's error as the service says it."""
    _, status, code = next(row for row in _STATUS_AND_CODE if isinstance(error, row[0]))
    return Refusal(status, str(error), code)


def or_refusal(call: Callable[..., Result], *values: object) -> Result | Refusal:
    """What the call gives for the values, or the refusal that it raises."""
    try:
        return call(*values)
    except Refusal as refusal:
        return refusal


@web.middleware
async def refusing(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Everything that goes wrong becomes one sentence in OpenAI's form."""
    try:
        return await handler(request)
    except Refusal as error:
        refusal = error
    except errors.RagError as error:
        refusal = refusal_of(error)
    except web.HTTPException as error:
        refusal = _of_http(request, error)
    except Exception:
        _log.exception("%s %s failed", request.method, request.path)
        refusal = Refusal(500, "the service failed: see its log", "internal_error")
    body = {"error": refusal.as_json()}
    return web.json_response(body, status=refusal.status, headers=refusal.headers)


def _of_http(request: web.Request, error: web.HTTPException) -> Refusal:
    path = f"{request.method} {request.path!a}"
    match error:
        case web.HTTPRequestEntityTooLarge():
            message = f"the body is too large: send at most {request.client_max_size} bytes"
            return Refusal(413, message, "too_large")
        case web.HTTPMethodNotAllowed():
            allowed = ", ".join(sorted(error.allowed_methods))
            message = f"{path} is no route here: use {allowed}"
            return Refusal(405, message, "wrong_method", Allow=allowed)
        case web.HTTPNotFound():
            return Refusal(404, f"{path} is no route here", "unknown_route")
    return Refusal(error.status, error.reason, "refused")


class Gate:
    """How much is let in; `inside` counts what is. Used on the event loop only."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.inside = 0

    @contextmanager
    def entered(self, count: int) -> Iterator[None]:
        """Hold `count` places, which must not be above the limit. Raises Refusal (429)."""
        if self.inside + count > self._limit:
            taken = f"{self.inside} of {self._limit} places in the queue are taken"
            raise Refusal(429, f"{taken}: send this again in a second", "queue_full")
        self.inside += count
        try:
            yield
        finally:
            self.inside -= count


def guarded(loopback: bool) -> Callable[..., Awaitable[web.StreamResponse]]:
    """A middleware that refuses (403) the pages of others, and with `loopback` their names for us.

    Of a service that other machines reach nobody knows all names: there any Host will do.
    """
    names = OwnNames("localhost", () if loopback else (ANY,), "--bind to an address of")

    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        def values(header: str) -> list[str]:
            return request.headers.getall(header, [])

        found = names.refusal(RequestSource(request.method, request.raw_path, values))
        if found is not None:
            raise Refusal(403, found.message, found.code)
        return await handler(request)

    return guard
