"""A CacheGen chunk in parts that travel apart and are reunited in any order.

A part is known by context, group and position: position 0 is the group's anchor, with whatever else
its first token needs, and the others are what a token adds to that. A token is usable once both are
there. What comes back is bit for bit what a whole frame gives.
"""

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256

import numpy as np

from kv_tiers.codecs.cachegen import FIRST, GROUP, CacheGen, decoded, encoded
from kv_tiers.codecs.codec import Bits, Shape
from kv_tiers.codecs.frame import FrameError

_HEADER = struct.Struct("<16sIBI")
"""Context, group, position, length of what follows; a CRC of all before it, and the payload."""
_CRC = struct.Struct("<I")
ANCHOR = 0


@dataclass(frozen=True, slots=True)
class PartId:
    """Where a part belongs: `context` is of 16 bytes, `position` in the group."""

    context: bytes
    group: int
    position: int = ANCHOR

    @classmethod
    def of(cls, key: bytes, group: int, position: int = ANCHOR) -> "PartId":
        """Of the chunk under this key."""
        return cls(sha256(key).digest()[:16], group, position)


def split(codec: CacheGen, bits: Bits, key: bytes) -> dict[PartId, bytes]:
    """All parts of a chunk, group by group, the anchor of each first."""
    anchors, symbols = codec.quantized(bits)
    coded, found = codec.coded(bits.shape[2]), {}
    for token in (0, *range(FIRST, bits.shape[2])):
        group, position = divmod(token, GROUP)
        head = b"" if token else bits[:, :, :FIRST].astype("<u2").tobytes()
        if position == ANCHOR:
            head += anchors[:, :, group][codec.deltas].tobytes()
        own = coded[:, :, token]
        part = PartId.of(key, group, position)
        found[part] = _packed(part, head + encoded(symbols[:, :, token][own], codec.scale[own]))
    return found


class PartReassembly:
    """Parts of the chunk under a key, in any order, until all are there."""

    def __init__(self, codec: CacheGen, shape: Shape, key: bytes) -> None:
        layers, kinds, tokens, channels = shape
        self._codec, self._context = codec, PartId.of(key, 0).context
        self._bits = np.zeros(shape, dtype=np.uint16)
        self._anchors = np.zeros((layers, kinds, -(-tokens // GROUP), channels), dtype=np.int8)
        self._symbols, self._coded = np.zeros(shape, dtype=np.int32), codec.coded(tokens)
        self._has_anchor = np.zeros(tokens, dtype=np.bool_)
        self._has_own = np.zeros(tokens, dtype=np.bool_)

    @property
    def usable_tokens(self) -> int:
        """From the start of the chunk."""
        return int(np.logical_and.accumulate(self._has_anchor & self._has_own).sum())

    @property
    def bits(self) -> Bits:
        """Of the tokens that are usable."""
        return self._bits[:, :, : self.usable_tokens]

    def add(self, parts: bytes) -> None:
        """One part, or several one behind the other. Raises FrameError for what is none of this
        chunk's, or not whole."""
        for part, payload in _parts(parts):
            token = part.group * GROUP + part.position
            if part.context != self._context or token >= len(self._has_own):
                raise FrameError("a part of another chunk")
            try:
                self._take(part, token, payload)
            except ValueError as error:
                raise FrameError(str(error)) from error

    def _take(self, part: PartId, token: int, payload: bytes) -> None:
        waiting = slice(token, token + 1)
        if part.position == ANCHOR:
            payload = self._take_anchor(part.group, payload)
            waiting = slice(token, token + GROUP)
            self._has_anchor[waiting] = True
        own = self._coded[:, :, token]
        self._symbols[:, :, token][own] = decoded(payload, self._codec.scale[own])
        self._has_own[token] = True
        if self._has_anchor[token]:
            group = slice(part.group, part.group + 1)
            found = self._codec.restored(self._anchors[:, :, group], self._symbols[:, :, waiting])
            kept = max(0, FIRST - token)
            self._bits[:, :, waiting][:, :, kept:] = found[:, :, kept:]

    def _take_anchor(self, group: int, payload: bytes) -> bytes:
        """What is left of it for the token's symbols."""
        if group == 0:
            first = self._bits[:, :, :FIRST]
            content = np.frombuffer(payload[: first.nbytes], dtype="<u2")
            first[:] = content.reshape(first.shape)
            self._has_own[:FIRST] = True
            payload = payload[first.nbytes :]
        deltas, anchors = self._codec.deltas, self._anchors[:, :, group]
        size = anchors[deltas].size
        content = np.frombuffer(payload[:size], dtype=np.int8)
        anchors[deltas] = content.reshape(anchors[deltas].shape)
        return payload[size:]


def _packed(part: PartId, payload: bytes) -> bytes:
    head = _HEADER.pack(part.context, part.group, part.position, len(payload))
    return head + _CRC.pack(zlib.crc32(payload, zlib.crc32(head))) + payload


def _parts(content: bytes) -> Iterator[tuple[PartId, bytes]]:
    """Raises FrameError."""
    start = _HEADER.size + _CRC.size
    while content:
        if len(content) < start:
            raise FrameError(f"{len(content)} bytes are no part")
        *known, length = _HEADER.unpack_from(content)
        payload = content[start : start + length]
        (crc,) = _CRC.unpack_from(content, _HEADER.size)
        if zlib.crc32(payload, zlib.crc32(content[: _HEADER.size])) != crc:
            raise FrameError("a part has changed")
        yield PartId(*known), payload
        content = content[start + length :]
