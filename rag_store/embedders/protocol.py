"""What an embedder is."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from rag_store.errors import VectorError

Vectors = npt.NDArray[np.float32]
States = npt.NDArray[np.int8]
_STATE_SCALE = 127


@dataclass(frozen=True, slots=True)
class Identity:
    """What makes two embedders' vectors comparable; `states`: a text has its words' states too."""

    name: str
    weights: str
    dim: int
    pooling: str
    states: bool = False


@dataclass(frozen=True, slots=True)
class Embedding:
    """A text's vector of unit length, shape [dim], and its words' states, shape [words, dim].

    A state is a vector of unit length times 127, rounded; there are none for an embedder without
    states. `words` names the word of each state in lower case; a long word may have several.
    """

    vector: Vectors
    states: States = field(default_factory=lambda: np.zeros((0, 0), np.int8))
    words: tuple[str, ...] = ()


class Embedder(Protocol):
    """Turns texts into vectors. Called from one thread at a time; may block."""

    @property
    def identity(self) -> Identity:
        """Which vectors these are."""

    def embed(self, texts: Sequence[str]) -> list[Embedding]:
        """One embedding for each text. Raises EmbedderError."""


def unit(vectors: npt.NDArray[np.floating]) -> Vectors:
    """The rows at unit length, as float32. Raises VectorError for NaN, infinite or zero rows.

    Chroma answers a NaN query with some neighbour and no error, so they must not get that far.
    """
    lengths = np.linalg.norm(vectors.astype(np.float64), axis=1, keepdims=True)
    if not np.all(np.isfinite(lengths)) or not np.all(lengths > 0):
        raise VectorError("the embedder gave a vector that is zero or not finite")
    return np.ascontiguousarray(vectors / lengths, dtype=np.float32)


def states(vectors: npt.NDArray[np.floating]) -> States:
    """The rows at unit length, one byte a dimension, shape as given. Raises EmbedderError."""
    return np.round(unit(vectors) * _STATE_SCALE).astype(np.int8)


def late_interaction(query: States, words: States) -> npt.NDArray[np.float32]:
    """The cosine of each of the words with each query word, shape [words, query words]."""
    columns = query.T.astype(np.float32) / np.float32(_STATE_SCALE * _STATE_SCALE)
    cosines: npt.NDArray[np.float32] = words.astype(np.float32) @ columns
    return cosines
