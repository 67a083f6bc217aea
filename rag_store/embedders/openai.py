"""Vectors from any server with OpenAI's /v1/embeddings."""

import json
import os
from collections.abc import Sequence
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

import numpy as np

from rag_store.embedders.protocol import Embedding, Identity, unit
from rag_store.errors import EmbedderError, EmbedderRefusal
from rag_store.model_server import is_final

_BATCH_ROWS = 64


class OpenAIEmbedder:
    """Asks `<url>/v1/embeddings`; which weights answer there cannot be seen, only their name."""

    def __init__(self, url: str, model: str, api_key_env: str, timeout_s: float = 60.0) -> None:
        """Ask once for the dimension. The key is read from the environment.

        Raises EmbedderError.
        """
        base = url.rstrip("/").removesuffix("/v1")
        if not base.startswith(("http://", "https://")):
            raise EmbedderError(f"the embedder's url is {url!r}: give http://host:port")
        self._url = f"{base}/v1/embeddings"
        self._model = model
        self._timeout_s = timeout_s
        self._key = os.environ.get(api_key_env, "")
        dim = len(self._ask(["dimension"])[0])
        self._identity = Identity("openai", model, dim, "the server's")

    @property
    def identity(self) -> Identity:
        """Which vectors these are."""
        return self._identity

    def embed(self, texts: Sequence[str]) -> list[Embedding]:
        """One embedding for each text, without states. Raises EmbedderError."""
        rows: list[list[float]] = []
        for start in range(0, len(texts), _BATCH_ROWS):
            rows += self._ask(list(texts[start : start + _BATCH_ROWS]))
        if any(len(row) != self._identity.dim for row in rows):
            raise EmbedderError(f"{self._url} gave vectors of another dimension than before")
        vectors = unit(np.array(rows, dtype=np.float64).reshape(-1, self._identity.dim))
        return [Embedding(vector) for vector in vectors]

    def _ask(self, texts: list[str]) -> list[list[float]]:
        body = json.dumps({"model": self._model, "input": texts, "encoding_format": "float"})
        headers = {"Content-Type": "application/json"}
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        request = Request(self._url, body.encode(), headers)
        try:
            with urlopen(request, timeout=self._timeout_s) as response:
                answer = json.load(response)
        except HTTPError as error:
            fails = EmbedderRefusal if is_final(error.code) else EmbedderError
            raise fails(f"{self._url} answered {error.code}: {_reason(error)}") from error
        except (URLError, OSError) as error:
            raise EmbedderError(f"cannot reach {self._url}: {error}") from error
        except ValueError as error:
            raise EmbedderError(f"{self._url} did not answer in JSON") from error
        return _rows(answer, len(texts), self._url)


def _reason(error: HTTPError) -> str:
    return error.read(300).decode("utf-8", "replace").strip() or error.reason


def _rows(answer: Any, count: int, url: str) -> list[list[float]]:
    try:
        found = {
            int(item["index"]): [float(x) for x in item["embedding"]] for item in answer["data"]
        }
        return [found[at] for at in range(count)]
    except (KeyError, TypeError, ValueError) as error:
        raise EmbedderError(f"{url} did not answer with {count} embeddings") from error
