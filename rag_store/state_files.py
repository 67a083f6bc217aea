"""Word states on disk, one file for each version of a document.

They are derived from the documents, so a file that is missing or broken is made anew. They stand
beside Chroma because it has no place for matrices.
"""

import hashlib
import os
import time
import zipfile
from collections.abc import Collection, Sequence
from pathlib import Path

import numpy as np

from rag_store.embedders import States
from rag_store.errors import RagUsageError, StoreError
from rag_store.fingerprint import Fingerprint

ABANDONED_S = 3600.0


class StateFiles:
    """The files of one collection, in a folder that names its fingerprint."""

    def __init__(self, path: Path, collection: str, fingerprint: Fingerprint) -> None:
        """Raises RagUsageError where the folder cannot be made."""
        make = hashlib.sha256(fingerprint.as_json().encode()).hexdigest()[:16]
        self._folder = path / "states" / f"{collection}-{make}"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RagUsageError(
                f"cannot write to {self._folder} ({error.strerror}): name another --path"
            ) from error

    def save(self, digest: str, states: Sequence[States]) -> None:
        """Keep the states of a document's sentences and questions. Raises StoreError."""
        path = self._path(digest)
        # Renamed when whole: a kill -9 leaves no half of a file under the name that is read.
        partial = path.with_suffix(f".{os.getpid()}.partial")
        try:
            with partial.open("wb") as file:
                counts = np.array([len(each) for each in states])
                np.savez(file, counts=counts, states=np.concatenate(states))
            partial.replace(path)
        except OSError as error:
            raise StoreError(f"cannot write {path}: {error.strerror}") from error

    def load(self, digest: str, passages: int, dim: int) -> tuple[States, ...] | None:
        """A document's states, of so many passages; None where there is no usable file."""
        try:
            with np.load(self._path(digest), allow_pickle=False) as file:
                counts, states = file["counts"], file["states"]
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
            return None
        usable = len(counts) == passages and states.shape == (int(counts.sum()), dim)
        if not usable or states.dtype != np.int8:
            return None
        return tuple(np.split(states, np.cumsum(counts)[:-1]))

    def remove(self, digest: str) -> None:
        """Remove a document's file, if it is there."""
        self._path(digest).unlink(missing_ok=True)

    def keep_only(self, digests: Collection[str]) -> None:
        """Remove the files of all other documents."""
        for path in self._folder.iterdir():
            if _is_left_over(path) or (path.suffix == ".npz" and path.stem not in digests):
                path.unlink(missing_ok=True)

    def _path(self, digest: str) -> Path:
        return self._folder / f"{digest}.npz"


def _is_left_over(path: Path) -> bool:
    """Whether nobody writes this partial file any more; another service of the folder may."""
    try:
        return path.suffix == ".partial" and time.time() - path.stat().st_mtime > ABANDONED_S
    except FileNotFoundError:
        return False
