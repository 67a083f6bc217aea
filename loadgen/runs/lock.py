"""A folder that one process at a time works in."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from loadgen.errors import UsageError


@contextmanager
def locked(folder: Path, work: str) -> Iterator[None]:
    """Nobody else works in the folder, which is made if need be; `work` names what is done there.

    The lock goes with its process, however that ends. Raises UsageError.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UsageError(
                f"another {work} works in {folder}: wait for its end, or give another --out"
            ) from None
        yield
