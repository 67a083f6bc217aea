"""LMCache's names for chunks: a digest of a chunk's tokens and of all before it."""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from blake3 import blake3

SUFFIX, SEPARATOR, SLASH = ".data", "@", "-SEP-"
_FIRST = blake3(bytes(8) + struct.pack(">I", 0)).digest()
"""Before the first chunk stands what LMCache's TokenHasher calls `none_hash`: the digest of the
number 0 and the one token 0."""


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
