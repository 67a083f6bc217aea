"""First sentences that tell contexts apart within their first 16 tokens.

A token stands for at least one byte, so texts that differ within 16 bytes share no block of 16
tokens. An opening differs within 13: "Text", a space, at most seven digits and a space.
"""

from collections import Counter
from collections.abc import Sequence

from loadgen.context import Document
from loadgen.workload.prompt import join_prompt

HEAD_BYTES = 16
OPENING = "Text "
TITLE_CHARACTERS = 80


def document_opening(index: int, document: Document) -> str:
    """The first sentence of the context `index` where its document needs one."""
    return f"{OPENING}{index} is about {_subject(document)}."


def composed_opening(index: int, first: Document) -> str:
    """The first sentence of a composed context; `first` is where its first passage is from."""
    return f"{OPENING}{index} begins with a passage on {_subject(first)}."


def needing_opening(documents: Sequence[Document]) -> set[int]:
    """The documents that begin like another one, or like an opening."""
    heads = [_head(document.text) for document in documents]
    often = Counter(heads)
    return {
        index
        for index, (head, document) in enumerate(zip(heads, documents, strict=True))
        if often[head] > 1 or document.text.startswith(OPENING)
    }


def _head(text: str) -> bytes:
    return join_prompt(text[:HEAD_BYTES], "").encode()[:HEAD_BYTES]


def _subject(document: Document) -> str:
    return document.title[:TITLE_CHARACTERS].strip()
