"""Embedders behind one small protocol, and the choice between them; the short ones are here too."""

import asyncio
import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from rag_store.embedders.protocol import Embedder, Embedding, Identity, Vectors, states, unit
from rag_store.embedders.transformer import MAX_TOKENS, TransformerEmbedder, open_minilm
from rag_store.errors import EmbedderError, EmbedderRefusal, RagUsageError, VectorError
from rag_store.model_server import Failures, ask, line_of, of_each, open_session, parsed_url

KINDS = ("minilm", "hf-encoder", "hf-causal-mean", "openai", "hashing")
_FAILURES = Failures(EmbedderError, EmbedderRefusal, "have it do less else meanwhile")
_WORD = re.compile(r"\w+")
_TRIPLE_WEIGHT = 0.3


@dataclass(frozen=True, slots=True)
class EmbedderSpec:
    """`model` is a folder or a name for the hf kinds and openai, `url` the server of openai."""

    kind: str = "minilm"
    model: str = ""
    url: str = ""
    api_key_env: str = "OPENAI_API_KEY"
    dim: int = 256
    max_tokens: int = MAX_TOKENS


def open_embedder(spec: EmbedderSpec) -> Embedder:
    """Load the embedder; blocks for seconds. Raises RagUsageError and EmbedderError."""
    match spec.kind:
        case "minilm":
            return open_minilm()
        case "hashing":
            return HashingEmbedder(spec.dim)
        case "hf-encoder" | "hf-causal-mean":
            model, states = _needed(spec, "model"), spec.kind == "hf-encoder"
            return TransformerEmbedder(spec.kind, model, spec.max_tokens, states)
        case "openai":
            url, model = _needed(spec, "url"), _needed(spec, "model")
            return OpenAIEmbedder(url, model, spec.api_key_env)
    raise RagUsageError(f"embedder {spec.kind!r} is unknown: choose one of {', '.join(KINDS)}")


def _needed(spec: EmbedderSpec, field: str) -> str:
    """What this kind of embedder cannot do without. Raises RagUsageError."""
    value = str(getattr(spec, field))
    if not value:
        raise RagUsageError(f"embedder {spec.kind!r} needs --embedder-{field}")
    return value


class OpenAIEmbedder:
    """Asks `<url>/v1/embeddings` from threads without an event loop: each call has its own."""

    def __init__(self, url: str, model: str, api_key_env: str) -> None:
        """Ask once for the dimension. Raises RagUsageError and EmbedderError."""
        parsed_url(url, "the embedder's url")
        self._route = f"{url.rstrip('/').removesuffix('/v1')}/v1/embeddings"
        self._model = model
        self._key_env = api_key_env
        [row] = asyncio.run(self._ask(["dimension"]))
        self.identity = Identity("openai", model, len(row), "the server's")

    def embed(self, texts: Sequence[str]) -> list[Embedding]:
        """One embedding for each text, without states. Raises EmbedderError."""
        rows = asyncio.run(self._ask(texts))
        if any(len(row) != self.identity.dim for row in rows):
            raise VectorError(f"{self._route} gave vectors of another dimension than before")
        vectors = unit(np.array(rows, dtype=np.float64).reshape(-1, self.identity.dim))
        return [Embedding(vector) for vector in vectors]

    async def _ask(self, texts: Sequence[str]) -> list[list[float]]:
        body = {"model": self._model, "input": list(texts), "encoding_format": "float"}
        async with open_session(self._key_env, timeout_s=60.0) as session:
            answer = await ask(session, self._route, body, _FAILURES)
        count = len(texts)
        rows = of_each(answer, "data", count, lambda each: [float(x) for x in each["embedding"]])
        if rows is None or not all(rows):
            told = f"{self._route} did not answer with {count} embeddings"
            raise VectorError(f"{told}: {line_of(answer)}")
        return rows


class HashingEmbedder:
    """Each word and each of its letter triples adds its sign to one of `dim` places; for tests."""

    def __init__(self, dim: int = 256) -> None:
        self.identity = Identity("hashing", "none", dim, "sum of words and letter triples", True)

    def embed(self, texts: Sequence[str]) -> list[Embedding]:
        """One embedding for each text; texts without a word share one."""
        return [self._embed(text) for text in texts]

    def _embed(self, text: str) -> Embedding:
        words = _WORD.findall(text.lower()) or [""]
        rows = np.stack([_hashed(word, self.identity.dim) for word in words])
        whole = unit(rows.sum(axis=0, keepdims=True) + 1e-6)
        return Embedding(whole[0], states(rows), tuple(words))


@lru_cache(maxsize=1 << 14)
def _hashed(word: str, dim: int) -> Vectors:
    padded = f"^{word}$"
    triples = (f"#{padded[start : start + 3]}" for start in range(len(padded) - 2))
    row = np.zeros(dim, np.float32)
    for feature, weight in ((word, 1.0), *((each, _TRIPLE_WEIGHT) for each in triples)):
        digest = int.from_bytes(hashlib.blake2b(feature.encode(), digest_size=8).digest())
        row[(digest >> 1) % dim] += weight if digest & 1 else -weight
    return row
