"""Queries that arrive together share a forward pass; a text seen before needs none."""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass

import numpy as np

from rag_store.embedders.protocol import Embedder, Embedding, Identity
from rag_store.errors import EmbedderError, EmbedderRefusal, RagError, VectorError


class LentEmbedder:
    """Runs an embedder in its own thread; each call waits for its turn there, and blocks."""

    def __init__(self, embedder: Embedder, executor: Executor) -> None:
        """`executor` must have one thread: an embedder is called by one thread at a time."""
        self._embedder = embedder
        self._executor = executor

    @property
    def identity(self) -> Identity:
        """That of the embedder."""
        return self._embedder.identity

    def embed(self, texts: Sequence[str]) -> list[Embedding]:
        """One embedding for each text. Raises EmbedderError."""
        return self._executor.submit(self._embedder.embed, texts).result()


@dataclass(frozen=True, slots=True)
class Embedded:
    """A text's embedding, and how long it waited and was computed; 0 when kept."""

    embedding: Embedding
    queue_ms: float
    embed_ms: float


@dataclass(slots=True)
class _Waiting:
    text: str
    since_s: float
    done: asyncio.Future[Embedded]


class EmbeddingQueue:
    """Runs an embedder in a thread, a batch at a time, and keeps the latest embeddings."""

    def __init__(
        self,
        embedder: Embedder,
        executor: Executor,
        batch_rows: int = 32,
        kept_texts: int = 4096,
    ) -> None:
        """`executor` must have one thread: an embedder is called by one thread at a time."""
        self._embedder = embedder
        self._executor = executor
        self._batch_rows = batch_rows
        self._kept: OrderedDict[str, Embedding] = OrderedDict()
        self._kept_texts = kept_texts
        self._waiting: dict[str, _Waiting] = {}
        self._runner: asyncio.Task[None] | None = None

    async def embed(self, text: str) -> Embedded:
        """The text's embedding. Raises EmbedderError."""
        kept = self._kept.get(text)
        if kept is not None:
            self._kept.move_to_end(text)
            return Embedded(kept, 0.0, 0.0)
        waiting = self._waiting.get(text)
        if waiting is None:
            future = asyncio.get_running_loop().create_future()
            waiting = self._waiting[text] = _Waiting(text, time.perf_counter(), future)
        if self._runner is None or self._runner.done():
            self._runner = asyncio.create_task(self._run())
        # Shielded: one caller that gives up must not cancel the others' vector.
        return await asyncio.shield(waiting.done)

    async def embed_many(self, texts: Sequence[str]) -> list[Embedded]:
        """The texts' embeddings in order. Raises EmbedderError."""
        return list(await asyncio.gather(*map(self.embed, texts)))

    async def close(self) -> None:
        """Give up on what waits. Idempotent."""
        if self._runner is not None:
            self._runner.cancel()
            await asyncio.gather(self._runner, return_exceptions=True)
        for waiting in self._waiting.values():
            waiting.done.cancel()
        self._waiting.clear()

    async def _run(self) -> None:
        # Texts that come in the same turn of the loop share the pass; later ones the next.
        await asyncio.sleep(0)
        while self._waiting:
            batch = list(self._waiting.values())[: self._batch_rows]
            for waiting in batch:
                del self._waiting[waiting.text]
            await self._pass(batch)

    async def _pass(self, batch: list[_Waiting]) -> None:
        try:
            error = await self._embed(batch)
            if error is not None and len(batch) > 1 and concerns_a_text(error):
                await self._one_by_one(batch)
            elif error is not None:
                _fail(batch, error)
        except asyncio.CancelledError:
            for waiting in batch:
                waiting.done.cancel()
            raise

    async def _one_by_one(self, batch: list[_Waiting]) -> None:
        """Of texts that failed together only those fail that fail alone."""
        for at, waiting in enumerate(batch):
            error = await self._embed([waiting])
            if error is not None and not concerns_a_text(error):
                _fail(batch[at:], error)
                return
            if error is not None:
                _fail([waiting], error)

    async def _embed(self, batch: list[_Waiting]) -> Exception | None:
        """Give those that wait their embeddings; the error where there are none."""
        texts = [waiting.text for waiting in batch]
        loop = asyncio.get_running_loop()
        try:
            found = await loop.run_in_executor(self._executor, _timed, self._embedder, texts)
        except Exception as error:
            return error
        begun_s, embeddings, ended_s = found
        for waiting, embedding in zip(batch, embeddings, strict=True):
            self._keep(waiting.text, embedding)
            if not waiting.done.done():
                queue_ms = (begun_s - waiting.since_s) * 1000
                embed_ms = (ended_s - begun_s) * 1000
                waiting.done.set_result(Embedded(embedding, queue_ms, embed_ms))
        return None

    def _keep(self, text: str, embedding: Embedding) -> None:
        self._kept[text] = embedding
        if len(self._kept) > self._kept_texts:
            self._kept.popitem(last=False)


def _timed(embedder: Embedder, texts: list[str]) -> tuple[float, list[Embedding], float]:
    begun_s = time.perf_counter()
    embeddings = checked_embeddings(embedder, texts)
    return begun_s, embeddings, time.perf_counter()


def checked_embeddings(embedder: Embedder, texts: Sequence[str]) -> list[Embedding]:
    """What the embedder makes of the texts, of the right number, shape and finite.

    Raises EmbedderError.
    """
    embeddings = embedder.embed(texts)
    dim = embedder.identity.dim
    sound = len(embeddings) == len(texts) and all(
        each.vector.shape == (dim,) and bool(np.isfinite(each.vector).all()) for each in embeddings
    )
    if not sound:
        raise VectorError(
            f"the embedder {embedder.identity.name} did not give {len(texts)} finite vectors"
            f" of {dim} dimensions"
        )
    return embeddings


def concerns_a_text(error: Exception) -> bool:
    """Whether other texts may fare better: not where a server is away or out of order."""
    unforeseen = not isinstance(error, EmbedderError)
    return unforeseen or isinstance(error, (EmbedderRefusal, VectorError))


def _fail(batch: list[_Waiting], error: Exception) -> None:
    known = error if isinstance(error, RagError) else EmbedderError(f"the embedder failed: {error}")
    for waiting in batch:
        if not waiting.done.done():
            waiting.done.set_exception(known)
            # A caller that gave up does not fetch it, and asyncio would complain.
            waiting.done.exception()
