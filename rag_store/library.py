"""The library: documents in, labels out. Everything that blocks runs in threads."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import TypeVar

from threadpoolctl import threadpool_limits

from rag_store.document_index import DocumentIndex, IngestReport, Progress, Size
from rag_store.documents import Document, Query, clean
from rag_store.embedders import open_embedder
from rag_store.embedders.protocol import Vectors
from rag_store.embedders.queue import Embedded, EmbeddingQueue, LentEmbedder
from rag_store.errors import REFUSALS, QueryError, RagError, RagUsageError, StoreError
from rag_store.label import KEEP, SHIPPED, Label, Threshold, fit
from rag_store.reranker import Reranker, open_reranker
from rag_store.search import Answer, Neighbours, Searcher, compare
from rag_store.settings import HYBRID, Settings
from rag_store.store import Entry

Result = TypeVar("Result")


@asynccontextmanager
async def open_library(settings: Settings, refit: bool = False) -> AsyncIterator["Library"]:
    """Load the embedder and open the collection; takes seconds.

    `refit` leaves out the threshold that was fitted: another will be. Raises RagUsageError,
    FingerprintError, EmbedderError and StoreError.
    """
    loop = asyncio.get_running_loop()
    with (
        # A search is too small to share between cores, and waits where others keep them busy.
        threadpool_limits(1, "blas"),
        ThreadPoolExecutor(1, "rag-embed") as embedding,
        ThreadPoolExecutor(settings.threads, "rag-search") as searching,
    ):
        embedder = await loop.run_in_executor(embedding, open_embedder, settings.embedder)
        lent = LentEmbedder(embedder, embedding)
        index = await loop.run_in_executor(searching, DocumentIndex, settings, lent)
        queue = EmbeddingQueue(embedder, embedding, kept_texts=settings.kept_queries)
        try:
            # A change that nobody awaits any more ends before its folder is unlocked.
            with ThreadPoolExecutor(1, "rag-change") as changing:
                async with open_reranker(settings.reranker) as reranker:
                    library = Library(settings, index, queue, changing, searching, reranker)
                    if not refit:
                        library.restore_threshold()
                    yield library
        finally:
            await queue.close()
            index.store.close()


@asynccontextmanager
async def filled_library(settings: Settings, refit: bool = False) -> AsyncIterator["Library"]:
    """As `open_library`, for commands that only ask: nothing is made.

    Raises RagUsageError too where there is no library, or no document in it.
    """
    async with open_library(replace(settings, create=False), refit=refit) as library:
        if not library.doc_ids:
            raise RagUsageError(
                f"the collection {settings.collection!r} in {settings.place} holds no document:"
                " fill it with kvswarm rag index, or name another with --collection"
            )
        yield library


@dataclass(eq=False)
class Library:
    """Use `open_library`. Changes are made one after another, labels at any time."""

    settings: Settings
    _index: DocumentIndex
    _queue: EmbeddingQueue
    _changes: ThreadPoolExecutor
    _searching: ThreadPoolExecutor
    _reranker: Reranker | None

    def __post_init__(self) -> None:
        self.fingerprint = self._index.fingerprint
        self._changing = asyncio.Lock()
        # Scores of vectors or of words alone are other quantities than those of both.
        is_hybrid = self.settings.retriever == HYBRID
        self._note = "threshold" if is_hybrid else f"threshold-{self.settings.retriever}"
        embedder = self.fingerprint.embedder if is_hybrid else ""
        self.threshold = SHIPPED.get(embedder, Threshold(0.0))

    def restore_threshold(self) -> None:
        """Decide as was fitted before, if ever. Raises StoreError."""
        stored = self._index.store.note(self._note)
        try:
            self.threshold = Threshold.from_json(stored) if stored else self.threshold
        except (ValueError, TypeError, KeyError) as error:
            raise StoreError(
                f"the threshold of the collection {self.settings.collection!r} cannot be read:"
                " fit it again with kvswarm rag fit-threshold"
            ) from error

    @property
    def size(self) -> Size:
        return self._index.size

    @property
    def doc_ids(self) -> tuple[str, ...]:
        """The ids of its documents, sorted."""
        return tuple(sorted(self._index.entries))

    def document(self, doc_id: str) -> Document | None:
        """The document with the id, None where there is none."""
        entry = self.entry(doc_id)
        return None if entry is None else entry.document()

    def entry(self, doc_id: str) -> Entry | None:
        """The same as it is stored."""
        return self._index.entries.get(doc_id)

    async def corpus_digest(self) -> str:
        """Of the ids and texts of all documents, see `DocumentIndex`."""
        return await self._in_thread(self._index.corpus_digest)

    async def prepare(self) -> None:
        """Build what the first query would build, which should not pay for it."""
        await self._in_thread(self._index.snapshot)

    async def ping(self) -> None:
        """Raise StoreError where Chroma does not answer."""
        # Not in the threads that search: they go on where Chroma does not.
        await asyncio.to_thread(self._index.store.ping)

    async def ingest(
        self, documents: Sequence[Document], progress: Progress | None = None, prune: bool = False
    ) -> IngestReport:
        """Add and update documents; with `prune` all others are taken out.

        `progress` is called in a thread, also within a document, with how many of the documents
        to be written are stored, and how many there are; what it raises ends this. Safe to repeat
        after any interruption. Raises RagUsageError, EmbedderError and StoreError.
        """
        tidy = [document.tidy() for document in documents]
        if len({document.doc_id for document in tidy}) != len(tidy):
            raise RagUsageError("two of the documents have the same id: rename one of them")
        async with self._changing:
            digests = {doc_id: entry.digest for doc_id, entry in self._index.entries.copy().items()}
            changed = [each for each in tidy if digests.get(each.doc_id) != each.digest]
            updated = sum(each.doc_id in digests for each in changed)
            surplus = set(digests) - {each.doc_id for each in tidy} if prune else set()
            given = changed, progress, sorted(surplus)
            await self._in_thread(self._index.write, *given, pool=self._changes)
            await self.prepare()
        added, unchanged = len(changed) - updated, len(tidy) - len(changed)
        return IngestReport(added, updated, unchanged, len(surplus))

    async def put(self, document: Document) -> str:
        """Add or update one document: "added", "updated" or "unchanged". Raises as `ingest`."""
        report = await self.ingest([document])
        return next(kind for kind in ("added", "updated", "unchanged") if getattr(report, kind))

    async def remove(self, doc_id: str) -> bool:
        """Take one document out; False where there is none with the id. Raises StoreError."""
        async with self._changing:
            if doc_id not in self._index.entries:
                return False
            await self._in_thread(self._index.write, [], None, [doc_id], pool=self._changes)
            return True

    async def label(self, text: str) -> Label:
        """The query's document. Raises QueryError, EmbedderError, RerankerError and StoreError."""
        return (await self.explain(text)).label

    async def label_many(self, texts: Sequence[str]) -> list[Label | RagError]:
        """One label or error for each query, in order; they share forward passes."""
        found = await asyncio.gather(*map(self.label, texts), return_exceptions=True)
        labels: list[Label | RagError] = []
        for each in found:
            if not isinstance(each, Label | RagError):
                raise each
            labels.append(each)
        return labels

    async def explain(self, text: str) -> Answer:
        """The label with what it was made from. Raises as `label`."""
        query = self._checked(text)
        embedded = await self._queue.embed(query)
        since_s = time.perf_counter()
        answer = await self._in_thread(self._find, query, embedded, since_s)
        if self._reranker is not None and answer.passages:
            begun_s = time.perf_counter()
            relevances = await self._reranker.relevances(query, answer.passages)
            return answer.reranked(relevances, _ms_since(begun_s))
        return answer

    async def ask(self, query: Query) -> Answer:
        """`explain`, where one of REFUSALS names the question. Raises as `label`."""
        try:
            return await self.explain(query.text)
        except REFUSALS as error:
            raise type(error)(f"question {query.query_id!a}: {error}") from error

    async def neighbours(self, text: str) -> Neighbours:
        """Chroma's HNSW index against comparing all chunks, by one query. Raises as `label`."""
        [vector] = await self.embed([self._checked(text)])
        nearest = self._index.store.nearest
        return await self._in_thread(compare, self._index.snapshot(), nearest, vector)

    async def embed(self, texts: Sequence[str]) -> list[Vectors]:
        """The texts' vectors of unit length, shape [dim], in order. Raises EmbedderError."""
        found = await asyncio.gather(*map(self._queue.embed, texts))
        return [each.embedding.vector for each in found]

    async def fit_threshold(
        self, answerable: Sequence[Query], unanswerable: Sequence[Query], keep: float = KEEP
    ) -> Threshold:
        """Decide anew when to refuse, and keep that beside the collection.

        The share `keep` of the answerable queries will be labelled; how many of the others are
        refused, an evaluation says. Raises as `ask`, and RagUsageError without an answerable query
        or a document.
        """
        self._index.require_writable()
        if not answerable or not self._index.entries:
            raise RagUsageError("fit the threshold on a filled library and answerable queries")
        scores = [(await self.ask(query)).label.score for query in answerable]
        fitted = fit(scores, len(unanswerable), keep)
        await self._in_thread(self._index.store.set_note, self._note, fitted.as_json())
        self.threshold = fitted
        return fitted

    def _find(self, query: str, embedded: Embedded, since_s: float) -> Answer:
        snapshot = self._index.snapshot()
        large = len(snapshot.rows) > self.settings.exact_chunks
        nearest = self._index.store.nearest if large else None
        searcher = Searcher(snapshot, self.settings, self.threshold, nearest)
        return searcher.find(query, embedded, _ms_since(since_s))

    def _checked(self, text: str) -> str:
        if not isinstance(text, str):
            raise QueryError("the query is not a text")
        most = self.settings.max_query_chars
        if len(text) > most:
            raise QueryError(f"the query has {len(text)} characters: send at most {most}")
        if not (query := clean(text)):
            raise QueryError("the query is empty: send a question")
        return query

    async def _in_thread(
        self, call: Callable[..., Result], *values: object, pool: ThreadPoolExecutor | None = None
    ) -> Result:
        pool = pool or self._searching
        return await asyncio.get_running_loop().run_in_executor(pool, call, *values)


def _ms_since(begun_s: float) -> float:
    return (time.perf_counter() - begun_s) * 1000
