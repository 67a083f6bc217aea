"""A folder that LMCache's file system tier has filled."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kv_reading.chunks import ChunkName, chunk_digests, parse_name
from kv_reading.errors import KvError


@dataclass(frozen=True, slots=True)
class Missing:
    """Why the KV of a request cannot be had."""

    reason: str


class FsTier:
    """Chunks by digest, as they lay in the folder when it was opened. Other files are passed by.

    Raises KvError for a folder that cannot be read, or that holds chunks of several models or
    workers: whose is meant cannot be known from token ids.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._files = _index(folder)

    def missing(self, digests: Sequence[bytes]) -> int:
        """How many of these chunks are not there."""
        return sum(digest not in self._files for digest in digests)

    def read(
        self, token_ids: Sequence[int], chunk_tokens: int, chunk_bytes: int
    ) -> list[bytes] | Missing:
        """The content of all full chunks of these tokens, each of `chunk_bytes`."""
        digests = chunk_digests(token_ids, chunk_tokens)
        if not digests:
            return Missing(f"{len(token_ids)} tokens fill no chunk of {chunk_tokens}")
        found: list[bytes] = []
        for number, digest in enumerate(digests):
            content = self._content(digest)
            if content is None:
                return Missing(f"chunk {number} of {len(digests)} is not in {self.folder}")
            if len(content) != chunk_bytes:
                return Missing(f"chunk {number} has {len(content)} bytes, not {chunk_bytes}")
            found.append(content)
        return found

    def size_bytes(self) -> int | None:
        """What most chunks have; None without any."""
        sizes = [path.stat().st_size for path in self._files.values() if path.exists()]
        return max(set(sizes), key=sizes.count) if sizes else None

    def _content(self, digest: bytes) -> bytes | None:
        path = self._files.get(digest)
        try:
            return None if path is None else path.read_bytes()
        except OSError:  # evicted since
            return None


def _index(folder: Path) -> dict[bytes, Path]:
    try:
        paths = sorted(folder.iterdir())
    except OSError as error:
        raise KvError(f"cannot read the tier {folder}: {error.strerror}") from error
    files: dict[bytes, Path] = {}
    owners: set[tuple[str, int, int, str]] = set()
    for path in paths:
        name = parse_name(path)
        if name is not None and path.is_file():
            files[name.digest] = path
            owners.add(_owner(name))
    if len(owners) > 1:
        told = ", ".join(f"{model} rank {rank:#x}" for model, rank, _, _ in sorted(owners))
        raise KvError(f"{folder} holds chunks of several models or workers ({told}): use one alone")
    return files


def _owner(name: ChunkName) -> tuple[str, int, int, str]:
    return name.model, name.rank, name.group, name.salt
