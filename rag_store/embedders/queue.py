"""Queries that arrive together share a forward pass; a text seen before needs none."""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass

import numpy as np

from rag_store.embedders.protocol import Embedder, Embedding
from rag_store.errors import OF_A_TEXT, RagError, VectorError


class LentEmbedder:
    """Runs an embedder in its own thread; each call waits for its turn there, and blocks."""

    def __init__(self, embedder: Embedder, executor: Executor) -> None:
        """`executor` must have one thread: an embedder is called by one thread at a time."""
        self._embedder = embedder
        self._executor = executor
        self.identity = embedder.identity

    def embed(self, texts: Sequence[str]) -> list[Embedding]:
        """One embedding for each text. Raises EmbedderError."""
        return self._executor.submit(self._embedder.embed, texts).result()


@dataclass(frozen=True, slots=True)
class Embedded:
    """A text's embedding, and how long it waited and was computed; 0 when kept."""

    embedding: Embedding
    queue_ms: float
    embed_ms: float


class EmbeddingQueue:
    """Runs an embedder in a thread, a batch at a time, and keeps the latest embeddings."""

    def __init__(
        self, embedder: Embedder, executor: Executor, batch_rows: int = 32, kept_texts: int = 4096
    ) -> None:
        """`executor` is as of `LentEmbedder`."""
        self._embedder = embedder
        self._executor = executor
        self._batch_rows = batch_rows
        self._kept: OrderedDict[str, Embedding] = OrderedDict()
        self._kept_texts = kept_texts
        # Since when each text waits, and for what.
        self._waiting: dict[str, tuple[float, asyncio.Future[Embedded]]] = {}
        self._runner: asyncio.Task[None] | None = None

    async def embed(self, text: str) -> Embedded:
        """The text's embedding. Raises EmbedderError."""
        if text in self._kept:
            self._kept.move_to_end(text)
            return Embedded(self._kept[text], 0.0, 0.0)
        if text not in self._waiting:
            future = asyncio.get_running_loop().create_future()
            self._waiting[text] = time.perf_counter(), future
        _, done = self._waiting[text]
        if self._runner is None or self._runner.done():
            self._runner = asyncio.create_task(self._run())
        # Shielded: one caller that gives up must not cancel the others' vector.
        return await asyncio.shield(done)

    async def close(self) -> None:
        """Give up on what waits. Idempotent."""
        if self._runner is not None:
            self._runner.cancel()
            await asyncio.gather(self._runner, return_exceptions=True)
        for _, done in self._waiting.values():
            done.cancel()
        self._waiting.clear()

    async def _run(self) -> None:
        # Texts that come in the same turn of the loop share the pass; later ones the next.
        await asyncio.sleep(0)
        while self._waiting:
            await self._pass(list(self._waiting)[: self._batch_rows])

    async def _pass(self, texts: list[str]) -> None:
        loop = asyncio.get_running_loop()
        try:
            found = await loop.run_in_executor(self._executor, _timed, self._embedder, texts)
        except BaseException:  # the queue, or who computes, is closed
            for text in texts:
                self._waiting.pop(text)[1].cancel()
            raise
        begun_s, embeddings, ended_s = found
        for text, each in zip(texts, embeddings, strict=True):
            # Until now whoever asks for the text waits with the others.
            since_s, done = self._waiting.pop(text)
            if isinstance(each, RagError):
                done.set_exception(each)
                # A caller that gave up does not fetch it, and asyncio would complain.
                done.exception()
                continue
            self._kept[text] = each
            if len(self._kept) > self._kept_texts:
                self._kept.popitem(last=False)
            queue_ms, embed_ms = (begun_s - since_s) * 1000, (ended_s - begun_s) * 1000
            done.set_result(Embedded(each, queue_ms, embed_ms))


def _timed(embedder: Embedder, texts: list[str]) -> tuple[float, list[Embedding | RagError], float]:
    begun_s = time.perf_counter()
    return begun_s, embed_each(embedder, texts), time.perf_counter()


def embed_each(embedder: Embedder, texts: Sequence[str]) -> list[Embedding | RagError]:
    """The embedding of each text, or its error: of texts that fail together those that fail alone.

    Where a server is away or out of order no other text is tried, and all have its error.
    """
    try:
        return list(_checked(embedder, texts))
    except RagError as error:
        known = error
    except Exception as error:
        known = VectorError(f"the embedder failed: {error}")
    if len(texts) == 1 or not isinstance(known, OF_A_TEXT):
        return [known for _ in texts]
    found: list[Embedding | RagError] = []
    for at, text in enumerate(texts):
        [each] = embed_each(embedder, [text])
        if isinstance(each, RagError) and not isinstance(each, OF_A_TEXT):
            return [*found, *[each] * (len(texts) - at)]
        found.append(each)
    return found


def _checked(embedder: Embedder, texts: Sequence[str]) -> list[Embedding]:
    """What the embedder makes, of the right number, shape and finite. Raises EmbedderError."""
    found, (name, dim) = embedder.embed(texts), (embedder.identity.name, embedder.identity.dim)
    sound = (each.vector.shape == (dim,) and np.isfinite(each.vector).all() for each in found)
    if len(found) == len(texts) and all(sound):
        return found
    wanted = f"{len(texts)} finite vectors of {dim} dimensions"
    raise VectorError(f"the embedder {name} did not give {wanted}")
