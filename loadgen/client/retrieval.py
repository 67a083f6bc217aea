"""A client of the RAG service: one question, and the document that it is about."""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import orjson

from loadgen.client.failures import (
    HttpError,
    Malformed,
    StreamFailure,
    TimedOut,
    excerpt,
    host_message,
    one_line,
)
from loadgen.client.host import WholeReply, base_url
from loadgen.client.wire import WireTransport

ROUTE, LABEL_ROUTE = "/v1/retrieve", "/v1/label"
"""For a document, and for its id alone."""
MAX_ATTEMPTS = 5
"""How often a question is put to a service whose queue is full."""

DEFAULT_WAIT_S = 1.0
MAX_WAIT_S = 30.0


@dataclass(frozen=True, slots=True)
class Retrieval:
    """What the service found: `doc_id` is None and `text` empty where it refused the question.

    Asked for a label alone, `text` is always empty. `score` is from 0 to 1. `timings_ms` are the
    service's own stages, `retrieval_ms` is our view: from asking to the parsed answer, waits for a
    full queue included.
    """

    doc_id: str | None
    text: str
    score: float
    timings_ms: Mapping[str, float]
    retrieval_ms: float


class RetrievalClient:
    """Asks one service, for any number of questions at once on one event loop."""

    def __init__(
        self,
        url: str,
        timeout_s: float = 600.0,
        connect_timeout_s: float = 10.0,
        route: str = ROUTE,
    ) -> None:
        """`timeout_s` bounds a question with all its waits. Raises HostError for no URL."""
        self._route = route
        self.url = base_url(url)
        self._timeout_s = timeout_s
        self._transport = WireTransport(
            self.url + route, {"Accept": "application/json"}, connect_timeout_s
        )

    async def __aenter__(self) -> Self:
        await self._transport.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._transport.__aexit__(*error)

    async def retrieve(self, question: str) -> Retrieval:
        """The document of the question.

        Raises a StreamFailure; it names the service, but Malformed blames a question that is no
        text.
        """
        body = _body(question)
        began_at = time.perf_counter()
        try:
            answer = await self._ask(body, began_at + self._timeout_s)
            return _retrieval(answer, began_at, self._route)
        except TimeoutError:
            raise TimedOut(self._said(f"no answer within {self._timeout_s:g} s")) from None
        except StreamFailure as failure:
            raise type(failure)(self._said(str(failure))) from failure

    async def _ask(self, body: bytes, due_at: float) -> bytes:
        for attempts_left in reversed(range(MAX_ATTEMPTS)):
            if (left_s := due_at - time.perf_counter()) <= 0:
                raise TimeoutError
            answer = WholeReply()
            await self._transport.post(body, answer, left_s)
            status, content = answer.head.status, bytes(answer.body)
            if status == 200:
                return content
            if status != 429 or not attempts_left:
                break
            left_s = max(due_at - time.perf_counter(), 0.0)
            await asyncio.sleep(min(_wait_s(answer.head.retry_after), left_s))
        raise HttpError(f"HTTP {status}: {host_message(content) or 'no message'}")

    def _said(self, text: str) -> str:
        service = "RAG service" if self._route == ROUTE else "KV service"
        return one_line(f"{service} {self.url}: {text}")


def _body(question: str) -> bytes:
    try:
        return orjson.dumps({"query": question})
    except orjson.JSONEncodeError:
        raise Malformed("half a surrogate pair in the question: it cannot be sent") from None


def _wait_s(retry_after: str) -> float:
    """The seconds of a Retry-After; its other form, a date, is not taken at its word."""
    digits = retry_after.isascii() and retry_after.isdigit()
    return min(float(retry_after), MAX_WAIT_S) if digits else DEFAULT_WAIT_S


def _retrieval(answer: bytes, began_at: float, route: str) -> Retrieval:
    try:
        fields = orjson.loads(answer)
        whole = route == ROUTE
        doc_id, label = fields["doc_id"], fields["label"] if whole else fields
        text = _text(fields["document"]["text"]) if whole and doc_id is not None else ""
        return Retrieval(
            doc_id=None if doc_id is None else _text(doc_id),
            text=text,
            score=float(label["score"]),
            timings_ms={name: float(value) for name, value in label["timings"].items()},
            retrieval_ms=(time.perf_counter() - began_at) * 1000,
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        raise Malformed(f"this is no answer to {route}: {excerpt(answer)}") from None


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value
