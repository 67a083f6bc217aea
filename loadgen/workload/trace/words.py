"""Made text of an exact length in tokens, the same for the same name."""

import re
from collections.abc import Iterable, Iterator
from itertools import islice
from random import Random

from loadgen.context import Document
from loadgen.workload.dice import roll
from loadgen.workload.lengths import Tokens

ENOUGH_WORDS = 512
CONSIDERED_WORDS = 20_000
CACHED_CHARACTERS = 16_000_000
_WORD = re.compile(r"[A-Za-z]{2,12}")


class Words:
    """Texts of words that are one token each, so that lengths add up without counting.

    A text begins with a space: what stands before it does not change its tokens, and texts can be
    put behind one another in any order.
    """

    def __init__(self, documents: Iterable[Document], tokens: Tokens, seed: int) -> None:
        self._seed = seed
        self._words = tuple(islice(_single_tokens(documents, tokens), ENOUGH_WORDS)) or (" the",)
        self._texts: dict[int, str] = {}  # ordered by last use
        self._characters = 0

    def block(self, block_id: int, tokens: int) -> str:
        """The text of a shared block; a shorter length of the same block is a prefix of it."""
        text = self._texts.pop(block_id, None)
        if text is None or text.count(" ") < tokens:
            self._characters -= len(text or "")
            text = self.text("block", block_id, tokens)
            self._characters += len(text)
        self._texts[block_id] = text
        self._evict()
        return text if text.count(" ") == tokens else _first(text, tokens)

    def text(self, kind: str, number: int, tokens: int) -> str:
        """The text named by kind and number."""
        return "".join(Random(roll(self._seed, kind, number)).choices(self._words, k=tokens))

    def _evict(self) -> None:
        while self._characters > CACHED_CHARACTERS and len(self._texts) > 1:
            self._characters -= len(self._texts.pop(next(iter(self._texts))))


def _first(text: str, words: int) -> str:
    end = -1
    for _ in range(words + 1):
        end = text.find(" ", end + 1)
    return text[:end]


def _single_tokens(documents: Iterable[Document], tokens: Tokens) -> Iterator[str]:
    """Words that with the space before them are one token, also behind another word."""
    for word in islice(_words(documents), CONSIDERED_WORDS):
        spaced = f" {word}"
        if tokens.count(spaced) == 1 and tokens.count(spaced * 2) == 2:
            yield spaced


def _words(documents: Iterable[Document]) -> Iterator[str]:
    seen: set[str] = set()
    for document in documents:
        for match in _WORD.finditer(document.text):
            if match[0] not in seen:
                seen.add(match[0])
                yield match[0]
