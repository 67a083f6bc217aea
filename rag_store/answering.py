"""The way of a query: embedded, searched, read by a reranker if there is one, labelled."""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from rag_store.embedders.queue import Embedded, EmbeddingQueue
from rag_store.reranking.client import Reranker
from rag_store.search import Answer, Found, Searcher


@dataclass(frozen=True, slots=True)
class Answering:
    """Lives on the loop and searches in the threads of `pool`.

    `searcher` is called there, and may take long where nobody has asked before.
    """

    queue: EmbeddingQueue
    reranker: Reranker | None
    pool: ThreadPoolExecutor
    searcher: Callable[[], Searcher]

    async def answer(self, query: str) -> Answer:
        """The label of a query that has been checked. Raises as `Library.label`."""
        embedded = await self.queue.embed(query)
        since_s, loop = time.perf_counter(), asyncio.get_running_loop()
        if self.reranker is None:
            return await loop.run_in_executor(self.pool, self._answer, query, embedded, since_s)
        read = await loop.run_in_executor(self.pool, self._read, query, embedded, since_s)
        found = read.found
        if read.passages:
            relevances = await self.reranker.relevances(query, read.passages)
            found = found.reranked(relevances, _ms_since(read.begun_s))
        since_s = time.perf_counter()
        return await loop.run_in_executor(self.pool, _label, read.searcher, found, since_s)

    def _answer(self, query: str, embedded: Embedded, since_s: float) -> Answer:
        searcher, found = self._find(query, embedded, since_s)
        return searcher.answer(found)

    def _read(self, query: str, embedded: Embedded, since_s: float) -> "_Read":
        searcher, found = self._find(query, embedded, since_s)
        begun_s = time.perf_counter()
        return _Read(searcher, found, searcher.passages(found), begun_s)

    def _find(self, query: str, embedded: Embedded, since_s: float) -> tuple[Searcher, Found]:
        searcher = self.searcher()
        return searcher, searcher.find(query, embedded, _ms_since(since_s))


@dataclass(frozen=True, slots=True)
class _Read:
    """What was found, and what the reranker reads of it, which began to be made at `begun_s`."""

    searcher: Searcher
    found: Found
    passages: list[str]
    begun_s: float


def _label(searcher: Searcher, found: Found, since_s: float) -> Answer:
    return searcher.answer(found.waited(_ms_since(since_s)))


def _ms_since(begun_s: float) -> float:
    return (time.perf_counter() - begun_s) * 1000
