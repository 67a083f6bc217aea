"""The KV that LMCache stored, by token ids, once its layout is known to be read rightly."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kv_reading.errors import KvError
from kv_reading.kv import Kv, Shape, joined
from kv_reading.layout import Layout, decode
from kv_reading.reference import ReferenceModel
from kv_reading.request import KvRequest
from kv_reading.self_test import MIN_COSINE, agreement, find_layout
from kv_reading.tier import FsTier, Missing

TESTED = 4
"""Prompts of different kinds whose stored KV is compared with a forward pass."""


@dataclass(frozen=True, slots=True)
class StoredKv:
    """A tier that has passed the self-test; `cosine` is the worst seen in it."""

    tier: FsTier
    chunk_tokens: int
    chunk_bytes: int
    shape: Shape
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
    shape: Shape,
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
