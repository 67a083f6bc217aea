"""What travels into the store: documents, and queries with their true documents."""

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass

# NUL and its like, and halves of surrogate pairs: they break UTF-8, terminals and databases.
_UNSAFE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff]")

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
        packed = "\x00".join((self.doc_id, self.title, self.text, *self.questions))
        return sha256_32(packed)

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
