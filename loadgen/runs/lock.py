"""A folder that one process at a time works in."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from loadgen.errors import UsageError


def take_lock(path: Path) -> TextIO | None:
    """The open file that holds the lock for as long as its process lives and does not close it;
    None where another one has it."""
    file = path.open("w")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        return None
    return file


@contextmanager
def locked(folder: Path, work: str) -> Iterator[None]:
    """Nobody else works in the folder, which is made if need be; `work` names what is done there.

    Raises UsageError.
    """
    folder.mkdir(parents=True, exist_ok=True)
    file = take_lock(folder / "lock")
    if file is None:
        raise UsageError(
            f"another {work} works in {folder}: wait for its end, or give another --out"
        )
    with file:
        yield
