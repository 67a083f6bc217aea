"""What a collection was made with; vectors of another make must not be compared with its own."""

import json
from dataclasses import asdict, dataclass

from rag_store.chunking import Chunker
from rag_store.embedders.protocol import Identity
from rag_store.errors import FingerprintError, OtherSettings

SCHEMA = 5


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """Embedder, chunking and layout; two collections with equal ones are interchangeable."""

    embedder: str
    weights: str
    dim: int
    pooling: str
    chunk_tokens: int
    overlap_tokens: int
    schema: int = SCHEMA

    @classmethod
    def of(cls, identity: Identity, chunker: Chunker) -> "Fingerprint":
        """The fingerprint of what these two will make."""
        cut = chunker.size_tokens, chunker.overlap_tokens
        return cls(identity.name, identity.weights, identity.dim, identity.pooling, *cut)

    def as_json(self) -> str:
        """One line of JSON, as kept in the collection's metadata."""
        return json.dumps(asdict(self), sort_keys=True)

    def check(self, stored: object, collection: str) -> None:
        """Raise OtherSettings for another make's `as_json`, FingerprintError for anything else."""
        known = require_ours(stored, collection)
        if known == self.as_json():
            return
        theirs = json.loads(known)
        differences = ", ".join(
            f"{name} {_short(theirs.get(name))}, not {_short(value)}"
            for name, value in asdict(self).items()
            if theirs.get(name) != value
        )
        other = f"with other settings ({differences}): use those,"
        if theirs.get("schema") != SCHEMA:
            other = "by another version of kvswarm:"
        raise OtherSettings(
            f"the collection {collection!r} was made {other} choose another --collection,"
            " or make it anew with kvswarm rag index --rebuild"
        )


def require_ours(stored: object, collection: str) -> str:
    """A collection's fingerprint. Raises FingerprintError for the collection of others."""
    if isinstance(stored, str):
        return stored
    raise FingerprintError(
        f"the collection {collection!r} was not made by kvswarm:"
        " choose another name with --collection"
    )


def _short(value: object) -> str:
    text = str(value)
    return f"{text[:12]}…" if len(text) == 64 else text
