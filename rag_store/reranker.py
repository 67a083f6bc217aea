"""A model that reads the question together with what was found, and says what answers it.

It is asked by `/v1/rerank`, as Jina and Cohere defined it and vLLM serves it.
"""

import asyncio
import math
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import aiohttp

from rag_store.errors import RagUsageError, RerankerError, RerankerRefusal
from rag_store.model_server import Failures, ask, line_of, of_each, open_session, parsed_url

AT_ONCE = 8
"""So many questions are with the server; the others wait here, where no timeout runs."""
_FAILURES = Failures(
    RerankerError, RerankerRefusal, "have it read less with --rerank and --rerank-chunks"
)


@dataclass(frozen=True, slots=True)
class RerankerSpec:
    """The server at `url` reads the first `documents` candidates; without a url nobody does.

    Of each it reads so many `chunks`: two of the default size fit, with a question, into the 512
    tokens that many rerankers take. The key is read from the environment.
    """

    url: str = ""
    model: str = ""
    api_key_env: str = "RERANKER_API_KEY"
    documents: int = 5
    chunks: int = 2
    timeout_s: float = 30.0

    def __post_init__(self) -> None:
        if not self.url:
            return
        parsed_url(self.url, "the reranker's url")
        if not self.model:
            raise RagUsageError("a reranker needs the model's name too: --reranker-model")
        if self.documents < 2:
            raise RagUsageError(f"--rerank is {self.documents}: give at least 2")
        if self.chunks < 1:
            raise RagUsageError(f"--rerank-chunks is {self.chunks}: give at least 1")

    @property
    def route(self) -> str:
        """Where it is asked."""
        return f"{self.url.rstrip('/').removesuffix('/v1')}/v1/rerank"


@asynccontextmanager
async def open_reranker(spec: RerankerSpec) -> AsyncIterator["Reranker | None"]:
    """A reranker, of which nothing is asked yet; None without a url. Raises RagUsageError."""
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
        """How well each answers the query, in order; more is better. Raises RerankerError."""
        route, count = self._spec.route, len(passages)
        body = {"model": self._spec.model, "query": query, "documents": list(passages)}
        async with self._free:
            answer = await ask(self._session, route, body, _FAILURES)
        scores = of_each(answer, "results", count, lambda each: float(each["relevance_score"]))
        if scores is None:
            raise RerankerError(f"{route} did not score {count} texts: {line_of(answer)}")
        if not all(map(math.isfinite, scores)):
            raise RerankerError(f"{route} gave scores that are not finite")
        return scores
