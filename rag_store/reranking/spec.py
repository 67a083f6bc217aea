"""Which server reads what was found, as a command line says it."""

from dataclasses import dataclass

from rag_store.errors import RagUsageError
from rag_store.model_server import check_url


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
        check_url(self.url, "the reranker's url")
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
