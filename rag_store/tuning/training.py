"""How an encoder learns a corpus."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from rag_store.chunking import Chunker, passage
from rag_store.documents import Document
from rag_store.embedders.adapter import Adapter, Changes
from rag_store.embedders.head import Head
from rag_store.tuning.classifier import Classifier
from rag_store.tuning.examples import Example, Examples, batches, examples_of
from rag_store.tuning.low_rank import LowRankLayers
from rag_store.tuning.whole import WholeLayers

BATCH = 48
WARM_UP = 0.06
SMOOTHING = 0.05
MASKED = 0.15
"""Of the tokens, so that no single word decides. Dropout instead takes half as long again, and is
for encoders that know no mask."""

Told = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Course:
    """How long and how freely it learns: passes over all texts, and the rank of the changes."""

    epochs: int = 3
    rank: int = 16
    seed: int = 1


@dataclass(frozen=True, slots=True)
class Tuned:
    """What was learned from `texts` texts.

    Of `aside` questions that were not learned from here, the shares whose document was the most
    probable, `before` and `after`.
    """

    changes: Changes
    head: Head
    texts: int
    aside: int
    before: float
    after: float


def tune(
    tokenizer: Any,
    encoder: Any,
    documents: Sequence[Document],
    course: Course,
    told: Told,
    start: Adapter | None = None,
) -> Tuned:
    """Train an encoder, whose layers are replaced; `told` is called with the steps done and all.

    Each document must have a chunk. With an adapter to `start` from, made for this encoder, every
    weight of its layers learns. What `told` raises ends this. Raises EmbedderError for an adapter
    of other weights or chunks.
    """
    torch.manual_seed(course.seed)
    examples = examples_of(documents, course.seed)
    chunks = [
        (passage(each.title, chunk.text), at)
        for at, each in enumerate(documents)
        for chunk in Chunker().cut(each.text)
    ]
    texts, owners = zip(*chunks, strict=True)
    doc_ids = [each.doc_id for each in documents]
    classifier = Classifier.untrained(tokenizer, encoder, texts, owners)
    layers = (LowRankLayers if start is None else WholeLayers).of(encoder, course.rank)
    if start is not None:
        classifier.go_on_from(start, doc_ids)
    before = _share(classifier, examples.aside)
    _learn(classifier, layers, examples, course, told)
    changes = layers.changes()
    after = _share(classifier, examples.aside)
    head, count = classifier.learned(doc_ids), len(examples.learned)
    return Tuned(changes, head, count, len(examples.aside), before, after)


def _learn(
    classifier: Classifier,
    layers: LowRankLayers | WholeLayers,
    examples: Examples,
    course: Course,
    told: Told,
) -> None:
    chance = random.Random(course.seed)
    learned = examples.learned
    lengths = classifier.lengths_tokens([each.text for each in learned])
    steps = [
        batch for _ in range(course.epochs) for batch in batches(learned, lengths, BATCH, chance)
    ]
    weights = [each for each in classifier.encoder.parameters() if each.requires_grad]
    groups = [
        {"params": weights, "lr": layers.rate},
        {"params": classifier.head.parameters(), "lr": layers.head_rate},
    ]
    optimizer = torch.optim.AdamW(groups, weight_decay=0.0)
    warm = max(1, round(WARM_UP * len(steps)))
    rates = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / warm, (len(steps) - step) / len(steps))
    )
    classifier.encoder.train(not classifier.masks)
    for at, batch in enumerate(steps):
        optimizer.zero_grad()
        torch.autograd.backward(_loss(classifier, batch))
        torch.nn.utils.clip_grad_norm_(weights, 1.0)
        optimizer.step()
        rates.step()
        told(at + 1, len(steps))


def _loss(classifier: Classifier, batch: Sequence[Example]) -> torch.Tensor:
    """Cross entropy, where each document has a little of the truth."""
    found = classifier([each.text for each in batch], MASKED)
    true = found[range(len(batch)), [each.document for each in batch]]
    return -((1 - SMOOTHING) * true.mean() + SMOOTHING * found.mean())


def _share(classifier: Classifier, examples: Sequence[Example]) -> float:
    return classifier.share_right(
        [each.text for each in examples], [each.document for each in examples]
    )
