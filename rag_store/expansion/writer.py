"""A client of a chat endpoint that writes the questions of a document."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp

from rag_store.documents import Document, distinct
from rag_store.errors import ExpansionError
from rag_store.expansion.prompt import Part, parts, prompt, questions_in
from rag_store.model_server import check_url, line_of, message_of, open_session, post

_ATTEMPTS = 5
_BUSY = (429, 502, 503)
_WAIT_S = 1.0
_LONGEST_WAIT_S = 30.0
# What a question may take at most, and the thoughts of a model that thinks before it writes.
_QUESTION_TOKENS, _SPARE_TOKENS = 64, 256
_IF_SLOW = "ask it for less at once with --concurrency"


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
        check_url(self.url, "--url")
        return f"{self.url.rstrip('/').removesuffix('/v1')}/v1/chat/completions"


@asynccontextmanager
async def open_writer(endpoint: Endpoint) -> AsyncIterator["QuestionWriter"]:
    """A writer with connections of its own. Raises RagUsageError."""
    route = endpoint.route
    async with open_session(endpoint.key_env, endpoint.timeout_s) as session:
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
            status, content = await post(self._session, self._route, body, ExpansionError, _IF_SLOW)
            if status not in _BUSY or attempt == _ATTEMPTS - 1:
                break
            await asyncio.sleep(min(_WAIT_S * 2**attempt, _LONGEST_WAIT_S))
        if status != 200:
            raise ExpansionError(f"{self._route} answered HTTP {status}: {message_of(content)}")
        return _content(content, self._route)


def _content(answer: bytes, route: str) -> str:
    try:
        content: Any = json.loads(answer)["choices"][0]["message"]["content"]
    except (ValueError, KeyError, IndexError, TypeError, RecursionError):
        raise ExpansionError(f"{route} gave no chat completion: {line_of(answer)}") from None
    # A model that has thought to the end of its tokens has said nothing: null.
    return content if isinstance(content, str) else ""
