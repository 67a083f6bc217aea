"""A client of `/v1/rerank`, as Jina and Cohere defined it and vLLM serves it."""

import asyncio
import json
import math
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

from rag_store.errors import RerankerError, RerankerRefusal
from rag_store.model_server import accepted, line_of, open_session, post
from rag_store.reranking.spec import RerankerSpec

AT_ONCE = 8
"""So many questions are with the server; the others wait here, where no timeout runs."""

_IF_SLOW = "have it read less with --rerank and --rerank-chunks"


@asynccontextmanager
async def open_reranker(spec: RerankerSpec) -> AsyncIterator["Reranker | None"]:
    """A reranker with connections of its own; nothing is asked yet. None without a url.

    Raises RagUsageError.
    """
    if not spec.url:
        yield None
        return
    async with open_session(spec.api_key_env, spec.timeout_s) as session:
        yield Reranker(session, spec)


class Reranker:
    """Use `open_reranker`."""

    def __init__(self, session: aiohttp.ClientSession, spec: RerankerSpec) -> None:
        self._session = session
        self._spec = spec
        self._free = asyncio.Semaphore(AT_ONCE)

    async def relevances(self, query: str, passages: Sequence[str]) -> list[float]:
        """How well each passage answers the query, in order; more is better.

        The numbers are the model's own, often from 0 to 1. Raises RerankerError, and of its kinds
        RerankerRefusal where asking again would not help.
        """
        route = self._spec.route
        body = {"model": self._spec.model, "query": query, "documents": list(passages)}
        async with self._free:
            reply = await post(self._session, route, body, RerankerError, _IF_SLOW)
        content = accepted(route, reply, RerankerError, RerankerRefusal)
        return _scores(content, len(passages), route)


def _scores(answer: bytes, count: int, route: str) -> list[float]:
    try:
        results: Any = json.loads(answer)["results"]
        found = {each["index"]: float(each["relevance_score"]) for each in results}
        if len(results) != count:
            raise ValueError("a text was scored twice, or one that was not sent")
        scores = [found[at] for at in range(count)]
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        raise RerankerError(f"{route} did not score {count} texts: {line_of(answer)}") from None
    if not all(map(math.isfinite, scores)):
        raise RerankerError(f"{route} gave scores that are not finite")
    return scores
