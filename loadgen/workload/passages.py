"""The paragraphs that contexts are put together from, and their lengths."""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from loadgen.context import Document
from loadgen.workload.corpus import Corpus
from loadgen.workload.lengths import Tokens

PARAGRAPH_BREAK = "\n\n"

_CLOSING_MARKS = re.compile(r"\W*\Z")
_NEXT_WORD = "The"


@dataclass(frozen=True, slots=True)
class Passage:
    """A paragraph and the position of its document in the corpus."""

    text: str
    document_index: int


def passages_of(document: Document, index: int) -> list[Passage]:
    """The document's paragraphs; joined by PARAGRAPH_BREAK they are its text again."""
    return [Passage(text, index) for text in document.text.split(PARAGRAPH_BREAK)]


def composable_passages(documents: Sequence[Document]) -> tuple[Passage, ...]:
    """All paragraphs of the documents but headings, unless there is nothing else."""
    found = [
        passage
        for index, document in enumerate(documents)
        for passage in passages_of(document, index)
        if passage.text.strip()
    ]
    return tuple(passage for passage in found if not _is_heading(passage.text)) or tuple(found)


def _is_heading(text: str) -> bool:
    return text.startswith("#") and "\n" not in text


def walk(count: int, number: int) -> Iterator[int]:
    """All of range(count) in an order chosen by a large random number, again and again."""
    number, position = divmod(number, count)
    step = number % count
    while math.gcd(step, count) != 1:
        step += 1
    while True:
        yield position
        position = (position + step) % count


class PassageLengths:
    """Measures paragraphs so that their lengths add up: a joined text is not counted again.

    To a paragraph's own tokens come those of the break before the next one. They depend on the
    marks the paragraph ends with, as many tokenizers merge marks and line feeds.
    """

    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens
        self._paragraphs: dict[str, int] = {}
        self._breaks: dict[str, int] = {}

    def paragraph_tokens(self, paragraph: str) -> int:
        """Tokens of the paragraph, at least 1, counted once."""
        tokens = self._paragraphs.get(paragraph)
        if tokens is None:
            tokens = self._paragraphs[paragraph] = max(self._tokens.count(paragraph), 1)
        return tokens

    def break_tokens(self, paragraph: str) -> int:
        """Tokens of the break between this paragraph and the next."""
        whole, *parts = _break_probes(paragraph)
        tokens = self._breaks.get(whole)
        if tokens is None:
            count = self._tokens.count
            tokens = self._breaks[whole] = max(count(whole) - sum(map(count, parts)), 0)
        return tokens


def _break_probes(paragraph: str) -> tuple[str, str, str]:
    """A word that ends like the paragraph and a next word: joined by a break, and each alone."""
    marks = _CLOSING_MARKS.search(paragraph[-8:])
    word = "word" + (marks[0] if marks else "")
    return word + PARAGRAPH_BREAK + _NEXT_WORD, word, _NEXT_WORD


def texts_to_measure(corpus: Corpus) -> Iterator[str]:
    """Each text whose length the workload asks for, for the table of MeasuredTokens."""
    found: dict[str, None] = {}
    for index, document in enumerate(corpus.documents):
        for passage in passages_of(document, index):
            found.update(dict.fromkeys((passage.text, *_break_probes(passage.text))))
    for questions in corpus.questions.values():
        found.update((question.text, None) for question in questions)
    return iter(found)
