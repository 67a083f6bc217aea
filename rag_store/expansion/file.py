"""The file that expansions are written into, document by document, and gone on with later."""

import json
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from rag_store.documents import Document
from rag_store.errors import CorpusError, RagUsageError
from rag_store.readers.rows import Row, parse_row, read_text


class ExpansionsFile:
    """Open it with `with`. Lines of documents that are gone or were changed since are dropped."""

    def __init__(self, path: Path, documents: Iterable[Document]) -> None:
        """Read what was written before. Raises CorpusError and RagUsageError."""
        self._path = path
        self._digests = {document.doc_id: document.text_digest for document in documents}
        self._kept = [row for row in _rows(path) if self._is_current(row)] if path.exists() else []
        self._file: IO[str] | None = None

    @property
    def done(self) -> set[str]:
        """The documents that have their questions."""
        return {row.identifier("doc_id", "_id") for row in self._kept if row.texts("questions")}

    def __enter__(self) -> Self:
        partial = self._path.with_name(f"{self._path.name}.partial")
        # ASCII, so that a line cut off anywhere is text.
        lines = [json.dumps(row.fields) for row in self._kept]
        try:
            partial.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
            partial.replace(self._path)
            self._file = self._path.open("a", encoding="utf-8")
        except OSError as error:
            raise self._unwritable(error) from error
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._file is not None
        self._file.close()

    def add(self, doc_id: str, questions: tuple[str, ...]) -> None:
        """Write a document's line. Raises RagUsageError."""
        assert self._file is not None
        fields = {"doc_id": doc_id, "questions": questions, "digest": self._digests[doc_id]}
        try:
            self._file.write(f"{json.dumps(fields)}\n")
            self._file.flush()
        except OSError as error:
            raise self._unwritable(error) from error

    def _is_current(self, row: Row) -> bool:
        """Lines that somebody else has written have no digest: they stay."""
        digest = self._digests.get(row.identifier("doc_id", "_id"))
        return digest is not None and row.fields.get("digest", digest) == digest

    def _unwritable(self, error: OSError) -> RagUsageError:
        return RagUsageError(
            f"cannot write {self._path}: {error.strerror}: name another file with -o"
        )


def _rows(path: Path) -> list[Row]:
    lines = read_text(path).split("\n")
    rows = []
    for number, line in enumerate(lines, start=1):
        try:
            if line.strip():
                rows.append(Row(f"{path}:{number}", parse_row(line, f"{path}:{number}")))
        except CorpusError:
            # A kill in the middle of a line leaves a part of it at the end of the file.
            if number < len(lines):
                raise
    return rows
