"""Errors of handlers as answers."""

import logging
from collections.abc import Awaitable, Callable

from aiohttp import web

from rag_store.errors import RagError
from rag_store.service.refusal import Problem, Refusal, problem_of

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

_log = logging.getLogger(__name__)


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
