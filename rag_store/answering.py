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

    `searcher` is called there, and may take long after a change of the documents.
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
        searcher, found, passages = await loop.run_in_executor(
            self.pool, self._passages, query, embedded, since_s
        )
        if passages:
            begun_s = time.perf_counter()
            relevances = await self.reranker.relevances(query, passages)
            found = found.reranked(relevances, (time.perf_counter() - begun_s) * 1000)
        return await loop.run_in_executor(self.pool, searcher.answer, found)

    def _answer(self, query: str, embedded: Embedded, since_s: float) -> Answer:
        searcher, found = self._find(query, embedded, since_s)
        return searcher.answer(found)

    def _passages(
        self, query: str, embedded: Embedded, since_s: float
    ) -> tuple[Searcher, Found, list[str]]:
        searcher, found = self._find(query, embedded, since_s)
        return searcher, found, searcher.passages(found)

    def _find(self, query: str, embedded: Embedded, since_s: float) -> tuple[Searcher, Found]:
        waited_ms = (time.perf_counter() - since_s) * 1000
        searcher = self.searcher()
        return searcher, searcher.find(query, embedded, waited_ms)
