"""What a model is told to write about a text, and which lines of its reply are questions."""

import re
from dataclasses import dataclass

from rag_store.chunking import Chunker, estimated_tokens
from rag_store.documents import Document, distinct

MAX_QUESTION_CHARS = 300
# Of so many tokens a small model still asks about the whole, and any window holds them.
_PART_TOKENS = 1000
_THOUGHTS = re.compile(r"<think>.*?(?:</think>|\Z)", re.DOTALL)
# "3.5" is no third line.
_BULLET = re.compile(r"^(?:[-*•]|(?:Q\s*)?\d{1,3}\s*[.):](?!\d)|Q:)\s*")
# Also the full-width one of Chinese and Japanese, and that of Arabic.
_MARKS = ("?", "\uff1f", "\u061f")
_TASK = """\
Write {count} questions that the text below answers, each one in a line of its own, and nothing \
else. Write as people ask who have not read the text and do not know its words: half of the \
questions in plain everyday words that the text does not use. Each question must be about \
something that this text says and must make sense alone: never say "the text" or "the author".

Title: {title}

{text}"""


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a document, and how many questions are wanted about it."""

    text: str
    count: int


def parts(document: Document, per_document: int) -> tuple[Part, ...]:
    """The document cut so that `per_document` questions are spread over all of it."""
    tokens = estimated_tokens(document.text)
    size = max(_PART_TOKENS, -(-tokens // per_document))
    chunks = Chunker(size, 0).cut(document.text)
    shares = [per_document * at // len(chunks) for at in range(len(chunks) + 1)]
    return tuple(
        Part(chunk.text, after - before)
        for chunk, before, after in zip(chunks, shares, shares[1:], strict=False)
        if after > before
    )


def prompt(title: str, part: Part) -> str:
    """The one message that the model gets."""
    return _TASK.format(count=part.count, title=title, text=part.text.strip())


def questions_in(reply: str) -> tuple[str, ...]:
    """The lines that end in a question mark, without numbers, quotes, repeats and long ones."""
    lines = [_bare(line) for line in _THOUGHTS.sub("", reply).splitlines()]
    return distinct(
        line
        for line in lines
        if line.endswith(_MARKS)
        and len(line) <= MAX_QUESTION_CHARS
        and any(letter.isalpha() for letter in line)
    )


def _bare(line: str) -> str:
    return _BULLET.sub("", line.strip().strip("*_").strip()).strip("\"'“”*_ ")
