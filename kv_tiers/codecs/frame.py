"""A frame around an encoded chunk: what it is, whose it is, and whether it is whole."""

import struct
import zlib
from collections.abc import Callable, Iterable, Mapping
from hashlib import sha256

from kv_tiers.codecs.catalog import CODECS
from kv_tiers.codecs.codec import Bits, KvCodec

MAGIC, VERSION = b"KVFR", 2
_HEADER = struct.Struct("<4sBBBx4I16s8sI")
"""Magic, version, codec, level, the four sizes, digests of the key and of the layout, length of
what follows; a CRC of all before it, and the payload, end the frame."""
_CRC = struct.Struct("<I")
MOST_VALUES = 1 << 31


class FrameError(ValueError):
    """Bytes that are no whole frame of this chunk: as if it were not there."""


def pack(codec: KvCodec, bits: Bits, key: bytes, layout: str = "") -> bytes:
    """A chunk of [layers, 2, tokens, channels] under its key; `layout` says what its bytes mean."""
    if bits.ndim != 4 or bits.shape[1] != 2:
        raise ValueError(f"a chunk of shape {bits.shape}: give [layers, 2, tokens, channels]")
    payload = codec.encode(bits)
    head = _HEADER.pack(
        *(MAGIC, VERSION, codec.number, codec.level, *bits.shape),
        *(_digest(key), _of_layout(layout), len(payload)),
    )
    return head + _CRC.pack(zlib.crc32(payload, zlib.crc32(head))) + payload


def unpack(
    frame: bytes | memoryview,
    key: bytes,
    codecs: Mapping[int, Callable[[int], KvCodec]] | None = None,
    layout: str = "",
) -> Bits:
    """The chunk under this key. `codecs` has by number what makes a codec of a level, beside those
    that need nothing. Raises FrameError for any other bytes, also of another `layout`."""
    number, level, shape, payload = checked(frame, key)
    if _HEADER.unpack_from(frame)[-2] != _of_layout(layout):
        raise FrameError(f"its bytes are laid out otherwise than {layout!r}")
    layers, kinds, tokens, channels = shape
    if kinds != 2 or layers * kinds * tokens * channels > MOST_VALUES:
        raise FrameError(f"sizes of {shape}")
    try:
        codec = _codec(number, level, codecs or {})
        return codec.decode(bytes(payload), (layers, kinds, tokens, channels))
    except ValueError as error:
        raise FrameError(str(error)) from error


def layout_among(frame: bytes | memoryview, layouts: Iterable[str]) -> str | None:
    """Which of these the frame's bytes have, None for none of them, and where it is no frame."""
    if len(frame) < _HEADER.size:
        return None
    digest = _HEADER.unpack_from(frame)[-2]
    return next((each for each in layouts if _of_layout(each) == digest), None)


def checked(
    frame: bytes | memoryview, key: bytes
) -> tuple[int, int, tuple[int, int, int, int], memoryview]:
    """Number and level of the codec, the four sizes and what was encoded, of a frame that is whole
    and of this key; nothing is decoded. Raises FrameError for any other bytes."""
    whole = memoryview(frame)
    start = _HEADER.size + _CRC.size
    if len(whole) < start:
        raise FrameError(f"{len(whole)} bytes are no frame")
    magic, version, number, level, *shape, digest, _, length = _HEADER.unpack_from(whole)
    if magic != MAGIC or version != VERSION:
        raise FrameError("no frame of this version")
    if len(whole) - start != length:
        raise FrameError(f"{len(whole) - start} bytes of {length}")
    (crc,) = _CRC.unpack_from(whole, _HEADER.size)
    if zlib.crc32(whole[start:], zlib.crc32(whole[: _HEADER.size])) != crc:
        raise FrameError("its bytes have changed")
    if digest != _digest(key):
        raise FrameError("it is of another key")
    return number, level, (shape[0], shape[1], shape[2], shape[3]), whole[start:]


def _codec(number: int, level: int, more: Mapping[int, Callable[[int], KvCodec]]) -> KvCodec:
    for make in CODECS.values():
        if (codec := make()).number == number:
            return codec
    if number not in more:
        raise FrameError(f"codec {number} is not known here")
    return more[number](level)


def _of_layout(layout: str) -> bytes:
    return _digest(layout.encode())[:8]


def _digest(key: bytes) -> bytes:
    return sha256(key).digest()[:16]
