"""An encoder whose vectors are to tell documents apart."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from rag_store.embedders.adapter import Adapter
from rag_store.embedders.head import Head
from rag_store.errors import EmbedderError

MAX_TOKENS = 96
_AT_ONCE = 64
_SHARPNESS = 15.0
"""Vectors of length one need it for probabilities near one."""
_SPREAD = 0.7
"""The length that the vectors of chunks begin with."""


@dataclass(frozen=True, slots=True)
class Classifier:
    """`head` has a row for each chunk of the corpus, `owners` the document of each.

    A document is as probable as all of its chunks together.
    """

    tokenizer: Any
    encoder: Any
    head: torch.nn.Linear
    owners: torch.Tensor

    @classmethod
    def untrained(
        cls, tokenizer: Any, encoder: Any, chunks: Sequence[str], owners: Sequence[int]
    ) -> "Classifier":
        """Begin with the vectors that the encoder gives the chunks, less their mean."""
        head = torch.nn.Linear(int(encoder.config.hidden_size), len(chunks))
        found = cls(tokenizer, encoder, head, torch.tensor(owners))
        vectors = found.vectors(chunks)
        apart = torch.nn.functional.normalize(vectors - vectors.mean(0), dim=-1)
        with torch.no_grad():
            head.weight.copy_(_SPREAD * apart)
            head.bias.zero_()
        return found

    def go_on_from(self, adapter: Adapter, doc_ids: Sequence[str]) -> None:
        """Take over what was learned of the same documents. Raises EmbedderError."""
        head = adapter.head
        known = np.array(doc_ids)[self.owners], np.array(head.doc_ids)[head.owners]
        if not np.array_equal(*known) or head.weights.shape != self.head.weight.shape:
            raise EmbedderError(
                f"{adapter.path} has learned other documents, or of other lengths:"
                " leave --from out and learn them anew"
            )
        adapter.apply(self.encoder, adapter.base)
        with torch.no_grad():
            for own, learned in ((self.head.weight, head.weights), (self.head.bias, head.biases)):
                own.copy_(torch.from_numpy(learned.astype(np.float32) / _SHARPNESS))

    @property
    def masks(self) -> bool:
        """Whether tokens can be hidden from it."""
        return self.tokenizer.mask_token_id is not None

    def vectors(self, texts: Sequence[str]) -> torch.Tensor:
        """Without learning: rows of unit length, shape [texts, dim]."""
        self.encoder.eval()
        parts = (texts[at : at + _AT_ONCE] for at in range(0, len(texts), _AT_ONCE))
        with torch.inference_mode():
            found = torch.cat([self._encoded(part) for part in parts])
        return found.clone()

    def lengths_tokens(self, texts: Sequence[str]) -> list[int]:
        """Of each text, as far as it is read."""
        found = self.tokenizer(list(texts), truncation=True, max_length=MAX_TOKENS)
        return [len(each) for each in found["input_ids"]]

    def __call__(self, texts: Sequence[str], masked: float = 0.0) -> torch.Tensor:
        """The logarithm of each document's probability, shape [texts, documents].

        Of the tokens the share `masked`, drawn at random, is not seen.
        """
        return self._probabilities(self._encoded(texts, masked))

    def share_right(self, texts: Sequence[str], documents: Sequence[int]) -> float:
        """Of the texts whose own document is the most probable; 0 of no texts."""
        if not texts:
            return 0.0
        with torch.inference_mode():
            likely = self._probabilities(self.vectors(texts)).argmax(-1)
        return float((likely == torch.tensor(documents)).double().mean())

    def learned(self, doc_ids: Sequence[str]) -> Head:
        """What `head` has learned of the documents, which have these ids."""
        weights, biases = self.head.weight.detach(), self.head.bias.detach()
        return Head(
            (_SHARPNESS * weights).numpy().astype(np.float16),
            (_SHARPNESS * biases).numpy().astype(np.float32),
            self.owners.numpy(),
            tuple(doc_ids),
        )

    def _encoded(self, texts: Sequence[str], masked: float = 0.0) -> torch.Tensor:
        tokens = self.tokenizer(
            list(texts),
            padding=True,
            truncation=True,
            max_length=MAX_TOKENS,
            return_tensors="pt",
            return_special_tokens_mask=True,
        )
        ids, seen = tokens["input_ids"], tokens["attention_mask"]
        if masked and self.masks:
            hit = (torch.rand(ids.shape) < masked) & (tokens["special_tokens_mask"] == 0)
            ids = ids.masked_fill(hit, self.tokenizer.mask_token_id)
        hidden = self.encoder(input_ids=ids, attention_mask=seen).last_hidden_state
        mask = seen[..., None].to(hidden.dtype)
        means = (hidden * mask).sum(1) / mask.sum(1)
        return torch.nn.functional.normalize(means, dim=-1)

    def _probabilities(self, vectors: torch.Tensor) -> torch.Tensor:
        by_chunk = torch.log_softmax(_SHARPNESS * self.head(vectors), -1)
        shape = len(vectors), int(self.owners.max()) + 1
        least = torch.full(shape, -torch.inf)
        own = self.owners.expand(len(vectors), -1)
        most = least.scatter_reduce(1, own, by_chunk.detach(), "amax")
        likely = torch.exp(by_chunk - most[:, self.owners])
        return torch.zeros(shape).index_add(1, self.owners, likely).log() + most
