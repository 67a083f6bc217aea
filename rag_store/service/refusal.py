"""What the service says no with: a status and one sentence, in the form of OpenAI's errors."""

from dataclasses import dataclass

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
