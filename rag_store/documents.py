"""What travels into the store: documents, and queries with their true documents."""

import hashlib
import re
from dataclasses import dataclass

# NUL and its like, and halves of surrogate pairs: they break UTF-8, terminals and databases.
_UNSAFE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff]")


def clean(text: str) -> str:
    """The text with unsafe characters as spaces, line ends as `\\n`, and nothing around it."""
    return _UNSAFE.sub(" ", text.replace("\r\n", "\n").replace("\r", "\n")).strip()


@dataclass(frozen=True, slots=True)
class Document:
    """One context: what a query can be about."""

    doc_id: str
    title: str
    text: str

    @property
    def digest(self) -> str:
        """SHA-256 over id, title and text, as 32 hex digits: equal digests, equal documents."""
        packed = "\x00".join((self.doc_id, self.title, self.text))
        return hashlib.sha256(packed.encode("utf-8", "replace")).hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class Query:
    """One question, and the documents that answer it: none, one or several.

    `kind` and `split` say to which part of its file it belongs; empty where the file does not.
    """

    query_id: str
    text: str
    doc_ids: tuple[str, ...] = ()
    kind: str = ""
    split: str = ""
