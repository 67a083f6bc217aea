"""An embedder for threads that must not call it themselves."""

from collections.abc import Sequence
from concurrent.futures import Executor

from rag_store.embedders.protocol import Embedder, Embedding, Identity


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
