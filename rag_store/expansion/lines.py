"""The lines of a file of expansions, and where the next one goes."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from rag_store.errors import CorpusError, RagUsageError
from rag_store.readers.rows import Row, decoded, parse_row

# What each of our lines begins with; all of them are ASCII.
_HEAD = b'{"doc_id": '


@dataclass(frozen=True, slots=True)
class Lines:
    """The rows that are whole, the bytes that they take, and whether a line end is the last."""

    rows: tuple[Row, ...]
    size: int
    ended: bool

    @classmethod
    def of(cls, content: bytes, path: Path) -> Self:
        """What the file holds. Raises CorpusError and, where it is none of ours, RagUsageError."""
        whole = _without_cut_line(content)
        lines = enumerate(decoded(whole, path).split("\n"), start=1)
        rows = tuple(_row(line, f"{path}:{number}") for number, line in lines if line.strip())
        return cls(rows, len(whole), whole[-1:] in (b"", b"\n"))


def _without_cut_line(content: bytes) -> bytes:
    """Without the part of a line of ours that a kill in the middle of it leaves at the end."""
    start = content.rfind(b"\n") + 1
    last = content[start:]
    if not last or last[: len(_HEAD)] != _HEAD[: len(last)]:
        return content
    try:
        json.loads(last)
    except (ValueError, RecursionError):
        return content[:start]
    return content


def _row(line: str, at: str) -> Row:
    try:
        row = Row(at, parse_row(line, at))
        row.identifier("doc_id", "_id")
        row.texts("questions")
    except CorpusError as error:
        raise RagUsageError(f"{error}, or name another file with -o") from error
    # A document may have questions too, but then it has a text.
    if "questions" not in row.fields or "text" in row.fields:
        raise RagUsageError(f"{at}: no line of expansions: name another file with -o")
    return row
