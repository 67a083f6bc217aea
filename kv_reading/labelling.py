"""Labels of questions by their KV, which a forward pass of the served model gives."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from kv_reading.centroids import Centroids, Near
from kv_reading.earlier import Earlier
from kv_reading.errors import KvError
from kv_reading.features import POOLS, pooled
from kv_reading.kv import Floats
from kv_reading.reference import ReferenceModel

FEATURES = (
    "keys and values of all layers and heads, mean over the question's tokens, standardised;"
    " nearest centroid"
)
CANDIDATES = 5


@dataclass(frozen=True, slots=True)
class KvLabel:
    """The nearest documents, best first, at most five: none where no earlier question is left. The
    forward pass took `compute_ms`, the search `search_ms`."""

    candidates: tuple[Near, ...]
    compute_ms: float
    search_ms: float


class KvLabeller:
    """Blocks while it computes."""

    def __init__(self, model: Path, earlier: Sequence[Earlier]) -> None:
        """Raises KvError for a model that cannot be loaded, and as `Centroids`."""
        self._tokenizer = _tokenizer(model)
        self._model = ReferenceModel(model)
        rows = np.stack([self._row(each.text) for each in earlier])
        self._centroids = Centroids(rows, [each.doc_id for each in earlier])
        self._texts = [each.text for each in earlier]

    @property
    def questions(self) -> int:
        """How many earlier ones are known."""
        return len(self._texts)

    @property
    def doc_ids(self) -> tuple[str, ...]:
        """What a label can be."""
        return self._centroids.doc_ids

    def label(self, question: str) -> KvLabel:
        """By the KV of the question alone. An earlier question with which it begins takes no part:
        none is labelled by itself, nor where it returns with another ending."""
        since_s = time.perf_counter()
        row = self._row(question)
        computed_s = time.perf_counter()
        same = [at for at, text in enumerate(self._texts) if question.startswith(text)]
        near = self._centroids.ranked(row, same)
        took_ms = (time.perf_counter() - computed_s) * 1000
        return KvLabel(tuple(near[:CANDIDATES]), (computed_s - since_s) * 1000, took_ms)

    def _row(self, text: str) -> Floats:
        ids = self._tokenizer.encode(text, add_special_tokens=False).ids
        row: Floats = pooled(self._model.kv(ids))[POOLS.index("mean")].reshape(-1)
        return row


def _tokenizer(model: Path) -> Tokenizer:
    path = model / "tokenizer.json"
    if not path.is_file():
        raise KvError(f"{model} has no tokenizer.json: name the folder of the model that is served")
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # tokenizers raises nothing narrower
        raise KvError(f"cannot read {path}: {error}") from error
