"""MiniLM trained further to name a question's document, on what documents and expansions say.

It shows what a small encoder can learn from a corpus. The weights are not kept: they hold for these
documents alone, and each pass over 9,700 texts takes five minutes on two cores.
"""

import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from scheduler_engine_run import say

from rag_store.documents import Document
from rag_store.embedders.minilm import model_folder

BATCH = 32
RATE, HEAD_RATE = 5e-5, 1e-2
WARM_UP = 0.1
SHARPNESS = 20.0
"""Vectors of length one need it for probabilities near one."""
MAX_TOKENS = 96

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Trained:
    """An encoder with a layer that tells `documents` apart."""

    tokenizer: Any
    encoder: Any
    head: torch.nn.Linear

    def scores(self, texts: Sequence[str]) -> npt.NDArray[np.float64]:
        """The logarithm of each document's probability, shape [texts, documents]."""
        self.encoder.eval()
        with torch.inference_mode():
            found = [torch.log_softmax(self(part), -1) for part in _parts(texts)]
        scores: npt.NDArray[np.float64] = torch.cat(found).double().numpy()
        return scores

    def __call__(self, texts: Sequence[str]) -> torch.Tensor:
        """What the layer says, shape [texts, documents]."""
        tokens = self.tokenizer(
            list(texts), padding=True, truncation=True, max_length=MAX_TOKENS, return_tensors="pt"
        )
        hidden = self.encoder(**tokens).last_hidden_state
        mask = tokens["attention_mask"][..., None].to(hidden.dtype)
        means = (hidden * mask).sum(1) / mask.sum(1)
        logits: torch.Tensor = SHARPNESS * self.head(torch.nn.functional.normalize(means, dim=-1))
        return logits


def train(documents: Sequence[Document], epochs: int, seed: int = 1) -> Trained:
    """On every sentence, title and expansion; documents are numbered in their order."""
    torch.manual_seed(seed)
    chance = random.Random(seed)
    examples = [(text, at) for at, each in enumerate(documents) for text in _texts(each)]
    trained = _untrained(len(documents))
    batches = [batch for _ in range(epochs) for batch in _batches(examples, chance)]
    optimizer = torch.optim.AdamW(
        [
            {"params": trained.encoder.parameters(), "lr": RATE},
            {"params": trained.head.parameters(), "lr": HEAD_RATE},
        ]
    )
    warm = max(1, round(WARM_UP * len(batches)))
    rates = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / warm, (len(batches) - step) / len(batches))
    )
    for at, batch in enumerate(batches):
        loss = _step(trained, batch, optimizer)
        rates.step()
        if at % 100 == 0:
            say(f"step {at} of {len(batches)}: loss {loss:.2f}")
    return trained


def _step(
    trained: Trained, batch: Sequence[tuple[str, int]], optimizer: torch.optim.Optimizer
) -> float:
    trained.encoder.train()
    logits = trained([text for text, _ in batch])
    loss = torch.nn.functional.cross_entropy(
        logits, torch.tensor([at for _, at in batch]), label_smoothing=0.05
    )
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(trained.encoder.parameters(), 1.0)
    optimizer.step()
    return float(loss.detach())


def _untrained(count: int) -> Trained:
    import transformers

    folder = str(model_folder())
    encoder = transformers.AutoModel.from_pretrained(folder, dtype=torch.float32)
    head = torch.nn.Linear(int(encoder.config.hidden_size), count)
    return Trained(transformers.AutoTokenizer.from_pretrained(folder), encoder, head)


def _texts(document: Document) -> list[str]:
    sentences = re.split(r"(?<=[.?!])\s+", document.text)
    return [document.title, *document.questions, *(each for each in sentences if " " in each)]


def _batches(
    examples: Sequence[tuple[str, int]], chance: random.Random
) -> list[list[tuple[str, int]]]:
    """All in random order, but texts of like length together, as a batch is padded."""
    order = chance.sample(examples, len(examples))
    windows = [sorted(part, key=lambda one: len(one[0])) for part in _parts(order, 20 * BATCH)]
    batches = [list(part) for window in windows for part in _parts(window)]
    chance.shuffle(batches)
    return batches


def _parts(every: Sequence[T], size: int = BATCH) -> Iterator[Sequence[T]]:
    return (every[at : at + size] for at in range(0, len(every), size))
