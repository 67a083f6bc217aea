"""Vectors from hashed words and letter triples: no weights, no dependencies, for tests."""

import hashlib
import re
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from rag_store.embedders.protocol import Embedding, Identity, Vectors, states, unit

_WORD = re.compile(r"\w+")
_TRIPLE_WEIGHT = 0.3


class HashingEmbedder:
    """Each word and each of its letter triples adds its sign to one of `dim` places."""

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
