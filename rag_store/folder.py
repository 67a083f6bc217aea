"""The folder that a library lies in: whether there is one, who has it, and who may write."""

import fcntl
import os
import shutil
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO

from rag_store.errors import RagUsageError, StoreError


class LibraryFolder:
    """A library's folder, locked until it is closed; `path` is where Chroma may open it.

    One that cannot be written is shared by all who read it, each of whom opens a copy: Chroma
    writes also where it is only asked.
    """

    def __init__(self, folder: Path, create: bool) -> None:
        """Without `create` it must be there. Raises RagUsageError and StoreError."""
        if not create and not os.path.isfile(folder / "chroma.sqlite3"):  # noqa: PTH113, no OSError
            raise RagUsageError(
                f"there is no library in {folder}: name another --path, or make one with kvswarm"
                " rag index"
            )
        self.read_only = not create and not os.access(folder, os.W_OK)
        with ExitStack() as stack:
            self.path = _copied(folder, stack) if self.read_only else _locked(folder, stack)
            self._held = stack.pop_all()

    def close(self) -> None:
        """Let another process open it. Idempotent."""
        self._held.close()


def _locked(folder: Path, stack: ExitStack) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = stack.enter_context((folder / "lock").open("w"))
    except OSError as error:
        raise RagUsageError(
            f"cannot write to {folder} ({error.strerror}): name another --path"
        ) from error
    # Two processes on one folder do not see each other's rows, so only one gets in.
    _lock(file, fcntl.LOCK_EX, folder)
    return folder


def _copied(folder: Path, stack: ExitStack) -> Path:
    try:
        if (folder / "lock").exists():
            _lock(stack.enter_context((folder / "lock").open()), fcntl.LOCK_SH, folder)
        copy = Path(stack.enter_context(TemporaryDirectory(prefix="kvswarm-library-")))
        for path in folder.rglob("*"):
            own = path.relative_to(folder)
            if path.is_file() and own.parts[0] != "states":
                (copy / own).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, copy / own)
    except OSError as error:
        raise StoreError(f"cannot copy {folder}, which is read-only: {error.strerror}") from error
    return copy


def _lock(file: IO[str], kind: int, folder: Path) -> None:
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except OSError as error:
        raise StoreError(
            f"{folder} is in use by another process: stop it, name another --path,"
            " or let both use a Chroma server with --chroma-url"
        ) from error
