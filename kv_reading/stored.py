"""The KV that LMCache stored, by token ids, once its layout is known to be read rightly.

LMCache's file system tier names a chunk by a digest of its tokens and of all before it.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from blake3 import blake3

from kv_reading import KvError
from kv_reading.kv import Kv, KvShape, ReferenceModel, joined
from kv_reading.layout import MIN_COSINE, Layout, agreement, decode, find_layout
from kv_reading.recording import KvRequest

SUFFIX, SEPARATOR, SLASH = ".data", "@", "-SEP-"
_FIRST = blake3(bytes(8) + struct.pack(">I", 0)).digest()
"""Before the first chunk stands what LMCache's TokenHasher calls `none_hash`: the digest of the
number 0 and the one token 0."""
TESTED = 4
"""Prompts of different kinds whose stored KV is compared with a forward pass."""


@dataclass(frozen=True, slots=True)
class ChunkName:
    """A file name of LMCache's file system tier, taken apart. `rank` packs world size and rank
    of the worker, `group` counts groups of layers, `salt` keeps users apart."""

    model: str
    rank: int
    group: int
    digest: bytes
    salt: str = ""


def parse_name(path: Path) -> ChunkName | None:
    """None for a file that is no finished chunk, as one still being written."""
    if path.suffix != SUFFIX:
        return None
    fields = path.name.removesuffix(SUFFIX).split(SEPARATOR)
    if len(fields) not in (4, 5):
        return None
    model, rank, group, digest, *salt = fields
    try:
        name = ChunkName(
            model.replace(SLASH, "/"),
            int(rank, 16),
            int(group, 16),
            bytes.fromhex(digest),
            salt[0] if salt else "",
        )
    except ValueError:
        return None
    return name if len(name.digest) == len(_FIRST) else None


def chunk_digests(token_ids: Sequence[int], chunk_tokens: int) -> list[bytes]:
    """The digest of each full chunk, in order; what is left over is stored nowhere."""
    digests: list[bytes] = []
    before = _FIRST
    for end in range(chunk_tokens, len(token_ids) + 1, chunk_tokens):
        ids = token_ids[end - chunk_tokens : end]
        before = blake3(before + struct.pack(f">{chunk_tokens}I", *ids)).digest()
        digests.append(before)
    return digests


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


@dataclass(frozen=True, slots=True)
class StoredKv:
    """A tier that has passed the self-test; `cosine` is the worst seen in it."""

    tier: FsTier
    chunk_tokens: int
    chunk_bytes: int
    shape: KvShape
    layout: Layout
    cosine: float

    @property
    def told(self) -> str:
        """The self-test in a line."""
        return (
            f"layout {self.layout.packing}, {self.layout.dtype}, blocks of"
            f" {self.layout.block_tokens} tokens: worst cosine of a layer with transformers"
            f" {self.cosine:.4f}"
        )

    def kv(self, token_ids: Sequence[int]) -> Kv | Missing:
        """Of all full chunks of these tokens."""
        found = self.tier.read(token_ids, self.chunk_tokens, self.chunk_bytes)
        if isinstance(found, Missing):
            return found
        return joined([decode(content, self.shape, self.layout) for content in found])


def open_stored(
    folder: Path,
    chunk_tokens: int,
    shape: KvShape,
    computing: ReferenceModel,
    requests: Sequence[KvRequest],
) -> StoredKv:
    """Find the layout by the first complete request, and check it by one of each other kind.

    Raises KvError where nothing is complete, or stored and computed KV differ.
    """
    tier = FsTier(folder)
    chunk_bytes = tier.size_bytes()
    if chunk_bytes is None:
        raise KvError(f"{folder} holds no chunk: record again with a target that has LMCache")
    complete = _first_of_each_kind(tier, chunk_tokens, chunk_bytes, requests)
    if not complete:
        raise KvError(f"{folder} holds no request whose chunks are all there: record again")
    (first, contents), *others = complete
    layout, cosine = find_layout(contents, computing.kv(first.token_ids), shape, chunk_tokens)
    stored = StoredKv(tier, chunk_tokens, chunk_bytes, shape, layout, cosine)
    for request, _ in others:
        kv = stored.kv(request.token_ids)
        if isinstance(kv, Missing):
            continue
        found = agreement(kv, computing.kv(request.token_ids[: kv.tokens]))
        if not found >= MIN_COSINE:
            raise KvError(
                f"the stored KV of {request.question_id} ({request.prompt}) is not that of a"
                f" forward pass of the model (cosine {found:.2f}): record again, or use --reference"
            )
        cosine = min(cosine, found)
    return StoredKv(tier, chunk_tokens, chunk_bytes, shape, layout, cosine)


def _first_of_each_kind(
    tier: FsTier, chunk_tokens: int, chunk_bytes: int, requests: Sequence[KvRequest]
) -> list[tuple[KvRequest, list[bytes]]]:
    found: dict[str, tuple[KvRequest, list[bytes]]] = {}
    for request in requests:
        if request.prompt not in found:
            contents = tier.read(request.token_ids, chunk_tokens, chunk_bytes)
            if not isinstance(contents, Missing):
                found[request.prompt] = request, contents
        if len(found) == TESTED:
            break
    return list(found.values())
