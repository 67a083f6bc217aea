"""The folder that a library lies in: whether there is one, and who has it."""

import fcntl
import os
from io import TextIOWrapper
from pathlib import Path

from rag_store.errors import RagUsageError, StoreError


def locked(path: Path, create: bool) -> TextIOWrapper:
    """Its lock, held until it is closed; the folder is made, or, without `create`, must be there.

    Two processes on one folder do not see each other's rows, so only one gets in. Raises
    RagUsageError and StoreError.
    """
    if not create and not os.path.isfile(path / "chroma.sqlite3"):  # noqa: PTH113, no OSError
        raise RagUsageError(
            f"there is no library in {path}: name another --path, or make one with kvswarm rag"
            " index"
        )
    file = _opened(path)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        file.close()
        raise StoreError(
            f"{path} is in use by another process: stop it, name another --path,"
            " or let both use a Chroma server with --chroma-url"
        ) from error
    return file


def _opened(path: Path) -> TextIOWrapper:
    try:
        path.mkdir(parents=True, exist_ok=True)
        return (path / "lock").open("w")
    except OSError as error:
        raise RagUsageError(
            f"cannot write to {path} ({error.strerror}): name another --path"
        ) from error
