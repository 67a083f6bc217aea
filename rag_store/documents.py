"""Documents and queries that travel into the store, and documents cut into chunks and sentences."""

import hashlib
import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from dataclasses import dataclass

from rag_store.errors import RagUsageError
from rag_store.terms import UNSPACED

# NUL and its like, and halves of surrogate pairs: they break UTF-8, terminals and databases.
_UNSAFE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff]")
# A word counts one token for each started five letters, which is close to what WordPiece and BPE
# make of prose and of identifiers; every other sign counts one, so does each of Chinese and
# Japanese. Endless words are cut at 40.
_WORD = re.compile(rf"[{UNSPACED}]|[^\W_{UNSPACED}]{{1,40}}|[^\w\s]|_")
_LETTERS_PER_TOKEN = 5
_SENTENCE_END = re.compile(r"(?<=[.!?;])\s+(?=[A-Z0-9\"'(])|\n+")
# Longer ones, such as tables and code, are cut into parts of so many tokens.
_SENTENCE_LETTERS = 400
_SENTENCE_TOKENS = 64

MAX_TEXT_CHARS = 4_000_000
"""Of one document: about a million tokens, and more than the context of nearly any model."""


def clean(text: str) -> str:
    """The text with unsafe characters as spaces, line ends as `\\n`, and nothing around it."""
    return _UNSAFE.sub(" ", text.replace("\r\n", "\n").replace("\r", "\n")).strip()


def printable(text: str) -> str:
    """The text in one line, without what a terminal obeys."""
    return "".join(each if each.isprintable() else " " for each in text)


def sha256_32(text: str) -> str:
    """The first 32 hex digits of the text's SHA-256."""
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:32]


def distinct(questions: Iterable[str]) -> tuple[str, ...]:
    """The questions in one line each, without those that are empty or stand there before."""
    kept: dict[str, str] = {}
    for line in (" ".join(clean(question).split()) for question in questions):
        kept.setdefault(line.casefold(), line)
    return tuple(filter(None, kept.values()))


@dataclass(frozen=True, slots=True)
class Document:
    """One context; `questions` are some that its text answers, each of them indexed beside it."""

    doc_id: str
    title: str
    text: str
    questions: tuple[str, ...] = ()

    @property
    def digest(self) -> str:
        """SHA-256 over all fields, as 32 hex digits: equal digests, equal documents."""
        return sha256_32("\x00".join((self.doc_id, self.title, self.text, *self.questions)))

    @property
    def text_digest(self) -> str:
        """SHA-256 over the text's words, whatever white space is between them, as 32 hex digits."""
        return sha256_32(" ".join(self.text.split()))

    def tidy(self) -> "Document":
        """The same as it is stored: clean, with a title, and no question empty or twice."""
        title = " ".join(clean(self.title).split()) or self.doc_id
        return Document(self.doc_id, title, clean(self.text), distinct(self.questions))


@dataclass(frozen=True, slots=True)
class Query:
    """One question and the documents that answer it; `kind` and `split` are its file's, or ""."""

    query_id: str
    text: str
    doc_ids: tuple[str, ...] = ()
    kind: str = ""
    split: str = ""


@dataclass(frozen=True, slots=True)
class Chunk:
    """A slice of a document: `text` is the document's text from character `start` on."""

    start: int
    text: str


@dataclass(frozen=True, slots=True)
class Chunker:
    """Cuts texts into chunks of about `size_tokens`, each sharing `overlap_tokens` with the next.

    The chunks together cover the whole text, whitespace included, so that the text can be put
    together from them again. Tokens are estimated, so that chunks do not depend on the embedder.
    """

    size_tokens: int = 128
    overlap_tokens: int = 32

    def __post_init__(self) -> None:
        if not 0 <= self.overlap_tokens < self.size_tokens:
            raise RagUsageError(
                f"--overlap-tokens is {self.overlap_tokens}: give at least 0 and less than"
                f" --chunk-tokens, {self.size_tokens}"
            )

    def cut(self, text: str) -> tuple[Chunk, ...]:
        """The chunks of the text, at least one."""
        starts, before = _measure(text)
        chunks: list[Chunk] = []
        first = 0
        while True:
            last = max(bisect_right(before, before[first] + self.size_tokens) - 1, first + 1)
            done = last >= len(starts)
            begin, stop = starts[first], len(text) if done else starts[last]
            chunks.append(Chunk(begin, text[begin:stop]))
            if done:
                return tuple(chunks)
            first = max(bisect_left(before, before[last] - self.overlap_tokens), first + 1)


def _measure(text: str) -> tuple[list[int], list[int]]:
    """Where each word begins, and how many tokens come before it (and before the end)."""
    starts, tokens = [0], [0]
    for match in _WORD.finditer(text):
        if match.start() > 0:
            starts.append(match.start())
            tokens.append(tokens[-1])
        tokens[-1] += -(-len(match.group()) // _LETTERS_PER_TOKEN)
    return starts, [0, *tokens]


def sentences(text: str) -> tuple[str, ...]:
    """The text's sentences in order, without the white space around them, none of them empty."""
    found: list[str] = []
    begin = 0
    for stop in [*(match.end() for match in _SENTENCE_END.finditer(text)), len(text)]:
        sentence = text[begin:stop]
        is_long = len(sentence) > _SENTENCE_LETTERS
        parts = Chunker(_SENTENCE_TOKENS, 0).cut(sentence) if is_long else [Chunk(0, sentence)]
        found += filter(None, (part.text.strip() for part in parts))
        begin = stop
    return tuple(found)


def join(chunks: tuple[Chunk, ...]) -> str:
    """The text that was cut, from all its chunks in order."""
    text = ""
    for chunk in chunks:
        text += chunk.text[len(text) - chunk.start :]
    return text


def passage(title: str, text: str) -> str:
    """What is embedded and indexed for a chunk: its words after the document's title."""
    return f"{title}\n{text.strip()}"
