"""A client of a chat endpoint that writes the questions of a document."""

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp

from rag_store.documents import Document, distinct
from rag_store.errors import ExpansionError, RagUsageError
from rag_store.expansion.prompt import Part, parts, prompt, questions_in

_ATTEMPTS = 5
_BUSY = (429, 502, 503)
_WAIT_S = 1.0
_LONGEST_WAIT_S = 30.0
# What a question may take at most, and the thoughts of a model that thinks before it writes.
_QUESTION_TOKENS, _SPARE_TOKENS = 64, 256


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Who writes: `<url>/v1/chat/completions`; the key is read from the environment."""

    url: str
    model: str
    key_env: str = "OPENAI_API_KEY"
    timeout_s: float = 300.0

    @property
    def route(self) -> str:
        """Where it is asked. Raises RagUsageError."""
        if not self.url.startswith(("http://", "https://")):
            raise RagUsageError(f"--url is {self.url!r}: give http://host:port")
        return f"{self.url.rstrip('/').removesuffix('/v1')}/v1/chat/completions"


@asynccontextmanager
async def open_writer(endpoint: Endpoint) -> AsyncIterator["QuestionWriter"]:
    """A writer with connections of its own. Raises RagUsageError."""
    key = os.environ.get(endpoint.key_env, "")
    timeout = aiohttp.ClientTimeout(total=endpoint.timeout_s, sock_connect=10)
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    route = endpoint.route
    async with aiohttp.ClientSession(timeout=timeout, headers=headers) as session:
        yield QuestionWriter(session, route, endpoint)


class QuestionWriter:
    """Use `open_writer`. Asks one part of a document after the other."""

    def __init__(self, session: aiohttp.ClientSession, route: str, endpoint: Endpoint) -> None:
        self._session = session
        self._route = route
        self._endpoint = endpoint

    async def write(self, document: Document, per_document: int) -> tuple[str, ...]:
        """At most so many questions about the document; none where no reply held any.

        Raises ExpansionError.
        """
        found: list[str] = []
        for part in parts(document, per_document):
            found += questions_in(await self._reply(document, part))[: part.count]
        return distinct(found)

    async def _reply(self, document: Document, part: Part) -> str:
        body = {
            "model": self._endpoint.model,
            "messages": [{"role": "user", "content": prompt(document.title, part)}],
            "max_tokens": part.count * _QUESTION_TOKENS + _SPARE_TOKENS,
        }
        for attempt in range(_ATTEMPTS):
            status, content = await self._post(body)
            if status not in _BUSY or attempt == _ATTEMPTS - 1:
                break
            await asyncio.sleep(min(_WAIT_S * 2**attempt, _LONGEST_WAIT_S))
        if status != 200:
            raise ExpansionError(f"{self._route} answered HTTP {status}: {_message(content)}")
        return _content(content, self._route)

    async def _post(self, body: dict[str, object]) -> tuple[int, bytes]:
        try:
            async with self._session.post(self._route, json=body) as response:
                return response.status, await response.read()
        except TimeoutError:
            raise ExpansionError(
                f"{self._route} has not answered in {self._endpoint.timeout_s:g} s:"
                " ask it for less at once with --concurrency"
            ) from None
        except (aiohttp.ClientError, OSError) as error:
            raise ExpansionError(f"cannot reach {self._route}: {_line(str(error))}") from error


def _content(answer: bytes, route: str) -> str:
    try:
        content: Any = json.loads(answer)["choices"][0]["message"]["content"]
    except (ValueError, KeyError, IndexError, TypeError):
        raise ExpansionError(f"{route} gave no chat completion: {_line(answer)}") from None
    # A model that has thought to the end of its tokens has said nothing: null.
    return content if isinstance(content, str) else ""


def _message(answer: bytes) -> str:
    """The sentence of an error in OpenAI's form or in FastAPI's, else the start of the answer."""
    try:
        fields = json.loads(answer)
        told = fields.get("error", fields)
        said = told.get("message") or told.get("detail") if isinstance(told, dict) else told
    except (ValueError, AttributeError):
        said = None
    return _line(str(said)) if said else _line(answer) or "no message"


def _line(text: str | bytes) -> str:
    whole = text.decode("utf-8", "replace") if isinstance(text, bytes) else text
    line = " ".join("".join(each if each.isprintable() else " " for each in whole).split())
    return line if len(line) <= 200 else f"{line[:200]}…"
