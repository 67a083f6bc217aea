"""What an encoder can learn a corpus from: texts of which the document is known."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from rag_store.chunking import sentences
from rag_store.documents import Document

KEPT_ASIDE = 0.05
MOST_ASIDE = 500
_BATCHES_ALIKE = 100
"""So many are sorted by length together: with more, less is padded; with fewer, more is mixed."""


@dataclass(frozen=True, slots=True)
class Example:
    """A text and the number of the document that it is about."""

    text: str
    document: int


@dataclass(frozen=True, slots=True)
class Examples:
    """Those to learn from, and questions that are kept aside to see what was learned."""

    learned: tuple[Example, ...]
    aside: tuple[Example, ...]


def examples_of(documents: Sequence[Document], seed: int) -> Examples:
    """Every title, sentence and question; a twentieth of the questions is kept aside."""
    chance = random.Random(seed)
    asked = [Example(text, at) for at, each in enumerate(documents) for text in each.questions]
    chance.shuffle(asked)
    count = min(round(KEPT_ASIDE * len(asked)), MOST_ASIDE)
    told = [
        Example(text, at)
        for at, each in enumerate(documents)
        for text in (each.title, *(part.text for part in sentences(each.text)))
    ]
    return Examples((*asked[count:], *told), tuple(asked[:count]))


def batches(
    examples: Sequence[Example], lengths_tokens: Sequence[int], size: int, chance: random.Random
) -> list[list[Example]]:
    """All in random order, but texts of like length together, as a batch is padded."""
    order = chance.sample(range(len(examples)), len(examples))
    window = _BATCHES_ALIKE * size
    windows = [
        sorted(order[at : at + window], key=lengths_tokens.__getitem__)
        for at in range(0, len(order), window)
    ]
    found = [
        [examples[each] for each in window[at : at + size]]
        for window in windows
        for at in range(0, len(window), size)
    ]
    chance.shuffle(found)
    return found
