"""Word states on disk, one file for each version of a document.

They are derived from the documents, so a file that is missing or broken is made anew. They stand
beside Chroma because it has no place for matrices. They take 60 times the text, so a large file is
mapped and not read: the memory that it takes may be given back.
"""

import mmap
import os
import re
import shutil
import time
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from rag_store.documents import sha256_32
from rag_store.embedders.protocol import States, Vectors, unit
from rag_store.errors import RagUsageError, StoreError
from rag_store.settings import Fingerprint

ABANDONED_S = 3600.0
_MAPPED_BYTES = 1 << 18
_BLOCK_SENTENCES = 1024
_COUNT = np.dtype("<i4")
_MAKE = re.compile("[0-9a-f]{16}")


@dataclass(frozen=True, slots=True)
class WordStates:
    """Of a document's sentences, then questions; `means` are of each, shape [sentences, dim]."""

    sentences: tuple[States, ...]
    means: Vectors


class StateFiles:
    """A file for each document: the states of all its sentences, and then how many each has."""

    def __init__(
        self, path: Path, collection: str, fingerprint: Fingerprint, read_only: bool = False
    ) -> None:
        """Raises RagUsageError where their folder, which names the fingerprint, cannot be made."""
        make = sha256_32(fingerprint.as_json())[:16]
        self._folder = path / "states" / f"{collection}-{make}"
        self._dim, self._read_only = fingerprint.dim, read_only
        try:
            if not read_only:
                self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RagUsageError(
                f"cannot write to {self._folder} ({error.strerror}): name another --path"
            ) from error

    def keep(self, digest: str, states: Iterable[States], passages: int) -> WordStates:
        """Write the states of a document's passages, and read them again. Raises StoreError."""
        if self._read_only:
            return states_in_memory(list(states))
        path, counts = self._path(digest), list[int]()
        # Renamed when whole: a kill -9 leaves no half of a file under the name that is read.
        partial = path.with_suffix(f".{os.getpid()}.partial")
        try:
            with partial.open("wb") as file:
                for each in states:
                    file.write(np.ascontiguousarray(each).data)
                    counts.append(len(each))
                file.write(np.array(counts, _COUNT).data)
            partial.replace(path)
        except OSError as error:
            raise StoreError(f"cannot write {path}: {error.strerror}") from error
        if (kept := self.load(digest, passages)) is None:
            raise StoreError(f"{path} was changed while it was written")
        return kept

    def load(self, digest: str, passages: int) -> WordStates | None:
        """A document's states, of so many passages; None where there is no usable file."""
        try:
            with self._path(digest).open("rb") as file:
                size = os.fstat(file.fileno()).st_size - passages * _COUNT.itemsize
                file.seek(max(size, 0))
                counts = np.fromfile(file, _COUNT, passages)
                usable = len(counts) == passages and counts.min(initial=1) > 0
                if not usable or int(counts.sum()) * self._dim != size:
                    return None
                return _states(file, counts, self._dim)
        except (OSError, ValueError):
            return None

    def remove(self, digest: str) -> None:
        """Remove a document's file, if it is there."""
        self._path(digest).unlink(missing_ok=True)

    def keep_only(self, digests: Collection[str]) -> None:
        """Remove the files of all other documents, and parts that nobody writes any more."""
        for path in self._folder.iterdir():
            with suppress(FileNotFoundError):  # another service of the folder removed it
                is_old = time.time() - path.stat().st_mtime > ABANDONED_S
                is_other = path.suffix == ".states" and path.stem not in digests
                if is_other or (path.suffix == ".partial" and is_old):
                    path.unlink()

    def drop_others(self) -> None:
        """Remove the folders of the same collection under other fingerprints: it was made anew."""
        name = self._folder.name.rpartition("-")[0]
        for folder in self._folder.parent.iterdir():
            other, _, make = folder.name.rpartition("-")
            if other == name and _MAKE.fullmatch(make) and folder != self._folder:
                shutil.rmtree(folder, ignore_errors=True)

    def _path(self, digest: str) -> Path:
        return self._folder / f"{digest}.states"


def states_in_memory(states: Sequence[States]) -> WordStates:
    """The same of states that are in no file."""
    return WordStates(tuple(states), _means(states))


def _states(file: BinaryIO, counts: npt.NDArray[np.int32], dim: int) -> WordStates:
    file.seek(0)
    means = []
    # By blocks that are read: pages of a map would stay in memory for as long as there is room.
    for start in range(0, len(counts), _BLOCK_SENTENCES):
        part = counts[start : start + _BLOCK_SENTENCES]
        block = np.fromfile(file, np.int8, int(part.sum()) * dim).reshape(-1, dim)
        means.append(_means(np.split(block, np.cumsum(part)[:-1])))
    whole = _mapped(file, int(counts.sum()) * dim).reshape(-1, dim)
    return WordStates(tuple(np.split(whole, np.cumsum(counts)[:-1])), np.concatenate(means))


def _mapped(file: BinaryIO, size: int) -> States:
    if size >= _MAPPED_BYTES:
        with suppress(OSError):  # a process may have 65,530 maps
            pages = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            return np.frombuffer(pages, np.int8, size)
    file.seek(0)
    return np.fromfile(file, np.int8, size)


def _means(states: Sequence[States]) -> Vectors:
    return unit(np.stack([each.sum(axis=0, dtype=np.float32) for each in states]))
