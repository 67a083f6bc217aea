"""Folders for the libraries of RAG services, kept for the next run on the same corpus."""

import fcntl
import hashlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TextIO

from loadgen.errors import UsageError
from loadgen.targets.home import home


@dataclass(frozen=True, slots=True)
class CorpusTexts:
    """Lines of JSON with doc_id, title and text; by its name their library is found again."""

    name: str
    documents: str


@dataclass(frozen=True, slots=True)
class LibraryFolder:
    """`path` is the library's, which may hold documents of before; `corpus` is to fill it."""

    path: Path
    corpus: Path


@contextmanager
def library_folder(corpus: CorpusTexts) -> Iterator[LibraryFolder]:
    """A folder for the corpus that nobody else uses until the exit.

    A second run at the same time gets a second folder. Raises UsageError where none can be made.
    """
    shelf = home() / "rag" / hashlib.sha256(corpus.name.encode()).hexdigest()[:16]
    with ExitStack() as stack:
        try:
            shelf.mkdir(parents=True, exist_ok=True)
            number, lock = _first_free(shelf)
            stack.enter_context(lock)
            source = shelf / f"{number}.jsonl"
            source.write_text(corpus.documents, encoding="utf-8")
        except OSError as error:
            raise UsageError(
                f"cannot keep a library in {shelf}: {error.strerror}:"
                " name a folder with KVSWARM_HOME"
            ) from error
        yield LibraryFolder(shelf / str(number), source)


def _first_free(shelf: Path) -> tuple[int, TextIO]:
    """The lowest number that is not taken, and the open file that takes it, however we end."""
    for number in count():
        lock = (shelf / f"{number}.lock").open("w")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
        else:
            return number, lock
    raise AssertionError("numbers do not end")
