"""The file that expansions are written into, document by document, and gone on with later."""

import fcntl
import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path

from rag_store.documents import Document
from rag_store.errors import RagUsageError
from rag_store.expansion.lines import Lines
from rag_store.readers.place import Place, place_of
from rag_store.readers.rows import Row


class ExpansionsFile:
    """Use `open_expansions`. Lines are added, and none that is whole is ever taken away.

    Those of a text that was changed since count for nothing, here as for readers of the corpus.
    """

    def __init__(self, path: Path, file: FileIO, documents: Iterable[Document]) -> None:
        """Read what was written before. Raises CorpusError and RagUsageError."""
        self._path = path
        self._file = file
        self._digests = {document.doc_id: document.text_digest for document in documents}
        self._before = Lines.of(file.read(), path)
        self._added = False

    @property
    def done(self) -> set[str]:
        """The documents that had their questions when the file was opened."""
        rows = (row for row in self._before.rows if self._is_current(row))
        return {row.identifier("doc_id", "_id") for row in rows if row.texts("questions")}

    def add(self, doc_id: str, questions: tuple[str, ...]) -> None:
        """Write a document's line. Raises RagUsageError."""
        fields = {"doc_id": doc_id, "questions": questions, "digest": self._digests[doc_id]}
        # ASCII, so that a line cut off anywhere is text.
        line = f"{json.dumps(fields)}\n".encode("ascii")
        try:
            self._write(line if self._added else self._after_the_last(line))
        except OSError as error:
            raise _unwritable(self._path, error) from error
        self._added = True

    def _after_the_last(self, line: bytes) -> bytes:
        """Only with the first line: a run that gets no answer leaves the file as it was."""
        self._file.truncate(self._before.size)
        return line if self._before.ended else b"\n" + line

    def _write(self, line: bytes) -> None:
        while line:
            line = line[self._file.write(line) :]

    def _is_current(self, row: Row) -> bool:
        """Lines that somebody else has written have no digest: they count."""
        digest = self._digests.get(row.identifier("doc_id", "_id"))
        return digest is not None and row.fields.get("digest", digest) == digest


@contextmanager
def open_expansions(path: Path, documents: Iterable[Document]) -> Iterator[ExpansionsFile]:
    """The file, made where there is none, while no other run writes into it.

    Raises CorpusError and RagUsageError.
    """
    if place_of(path) not in (Place.NOTHING, Place.FILE):
        raise RagUsageError(f"{path} is no regular file: name another file with -o")
    try:
        file = path.open("a+b", buffering=0)
    except OSError as error:
        raise _unwritable(path, error) from error
    with file:
        _lock(file, path)
        file.seek(0)
        yield ExpansionsFile(path, file, documents)


def _lock(file: FileIO, path: Path) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise RagUsageError(
            f"another run writes into {path}: wait for its end, or name another file with -o"
        ) from error
    except OSError as error:
        raise _unwritable(path, error) from error


def _unwritable(path: Path, error: OSError) -> RagUsageError:
    return RagUsageError(f"cannot write {path}: {error.strerror}: name another file with -o")
