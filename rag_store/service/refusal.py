"""What the service says no with, and to whom: a status and one sentence in OpenAI's form."""

import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from aiohttp import web

from rag_store.errors import (
    EmbedderError,
    EmbedderRefusal,
    QueryError,
    RagError,
    RagUsageError,
    RerankerError,
    RerankerRefusal,
    StoreError,
)
from rag_store.service.foreign import ANY, OwnNames, RequestSource

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

_log = logging.getLogger(__name__)
_TYPES = {
    429: "rate_limit_error",
    500: "server_error",
    502: "server_error",
    503: "server_error",
}


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong; `param` is the field of the body it is about."""

    status: int
    message: str
    code: str
    param: str | None = None

    @property
    def headers(self) -> dict[str, str]:
        """Those that belong to the status."""
        return {"Retry-After": "1"} if self.status in (429, 503) else {}

    def as_json(self) -> dict[str, str | None]:
        """The inside of OpenAI's `error` object."""
        kind = _TYPES.get(self.status, "invalid_request_error")
        return {"message": self.message, "type": kind, "param": self.param, "code": self.code}


class Refusal(Exception):
    """Ends a request with a problem."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.message)
        self.problem = problem


def invalid(message: str, param: str | None, code: str = "invalid_value") -> Refusal:
    """A field of a well-formed body is not what it must be."""
    return Refusal(Problem(422, message, code, param))


def not_found(message: str, param: str | None, code: str) -> Refusal:
    """A name in the request that nothing here has."""
    return Refusal(Problem(404, message, code, param))


def unavailable(message: str, code: str) -> Refusal:
    """The service is well, but what it needs is not there."""
    return Refusal(Problem(503, message, code))


def problem_of(error: RagError, param: str | None = None) -> Problem:
    """The library's error as the service says it."""
    match error:
        case QueryError():
            return Problem(422, str(error), "invalid_query", param)
        case RagUsageError():
            return Problem(422, str(error), "invalid_value", param)
        case EmbedderRefusal():
            return Problem(502, str(error), "embedder_refused")
        case EmbedderError():
            return Problem(503, str(error), "embedder_unavailable")
        case RerankerRefusal():
            return Problem(502, str(error), "reranker_refused")
        case RerankerError():
            return Problem(503, str(error), "reranker_unavailable")
        case StoreError():
            return Problem(503, str(error), "store_unavailable")
    return Problem(500, str(error), "internal_error")


@web.middleware
async def refusing(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Everything that goes wrong becomes one sentence in OpenAI's form."""
    try:
        return await handler(request)
    except Refusal as refusal:
        return _response(refusal.problem)
    except RagError as error:
        return _response(problem_of(error))
    except web.HTTPException as error:
        return _http_response(request, error)
    except Exception:
        _log.exception("%s %s failed", request.method, request.path)
        return _response(Problem(500, "the service failed: see its log", "internal_error"))


def _http_response(request: web.Request, error: web.HTTPException) -> web.Response:
    path = f"{request.method} {request.path!a}"
    match error:
        case web.HTTPRequestEntityTooLarge():
            limit = request.client_max_size
            message = f"the body is too large: send at most {limit} bytes"
            return _response(Problem(413, message, "too_large"))
        case web.HTTPMethodNotAllowed():
            allowed = ", ".join(sorted(error.allowed_methods))
            problem = Problem(405, f"{path} is no route here: use {allowed}", "wrong_method")
            return _response(problem, Allow=allowed)
        case web.HTTPNotFound():
            return _response(Problem(404, f"{path} is no route here", "unknown_route"))
    return _response(Problem(error.status, error.reason, "refused"))


def _response(problem: Problem, **headers: str) -> web.Response:
    body = {"error": problem.as_json()}
    return web.json_response(body, status=problem.status, headers={**problem.headers, **headers})


class Gate:
    """Counts what is inside; used on the event loop only."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._inside = 0

    @property
    def inside(self) -> int:
        """How many are being worked on or wait for it."""
        return self._inside

    @contextmanager
    def entered(self, count: int) -> Iterator[None]:
        """Hold `count` places, which must not be above the limit. Raises Refusal (429)."""
        if self._inside + count > self._limit:
            message = (
                f"{self._inside} of {self._limit} places in the queue are taken:"
                " send this again in a second"
            )
            raise Refusal(Problem(429, message, "queue_full"))
        self._inside += count
        try:
            yield
        finally:
            self._inside -= count


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
