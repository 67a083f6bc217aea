"""From a chunk's bytes, as an engine lays them out, to a frame and back."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kv_tiers.codecs import (
    CODECS,
    Bits,
    CacheGen,
    CacheGenProfile,
    FrameError,
    KvCodec,
    from_bits,
    layout_among,
    pack,
    to_bits,
    unpack,
)
from kv_tiers.packing import EnginePacking
from kv_tiers.store.plain_order import PlainOrder, in_packing, in_plain_order

CODEC_NAMES = (*CODECS, CacheGen.name)
BFLOAT16, FLOAT32 = "bfloat16", "float32"


@dataclass(frozen=True, slots=True)
class RawChunk:
    """Bytes of KV; `shape` as LMCache tells it: [2, layers, tokens, channels] with keys and values
    apart, or [layers, tokens, channels] of an engine that packs them in an order of its own, which
    depends on its `machine`."""

    content: bytes | memoryview
    dtype: str
    shape: tuple[int, ...]
    machine: str = ""

    @property
    def layout(self) -> str:
        """What these bytes mean beside their shape, and whether it says something: others' bytes
        of the same number may mean something else."""
        kind = "" if _is_known(self.shape) else " flat"
        return f"{self.dtype} {self.machine}{kind}"

    def layout_in(self, packing: EnginePacking) -> str:
        """That of values in plain order, which lay so."""
        return f"{self.layout} {packing}"


class ChunkCoder:
    """Frames of one codec are written, those of any codec are read.

    What is packed is taken in the order of its bytes: on the CPUs that pack, values beside each
    other are of one channel, or of one token, so that groups of them share a scale well. CacheGen
    needs the plain order, which its profile tells, and the frame says from which packing.
    """

    def __init__(self, codec: str = "raw", level: int = 1, profile: Path | None = None) -> None:
        """`profile` is of CacheGen alone, and needed by it. Raises ValueError and OSError."""
        self._profile = CacheGenProfile.read(profile) if profile is not None else None
        self._order = PlainOrder(self._profile) if self._profile is not None else None
        if codec in CODECS:
            self._codec: KvCodec = CODECS[codec]()
        elif codec != CacheGen.name:
            raise ValueError(f"unknown codec {codec!r}: choose one of {', '.join(CODEC_NAMES)}")
        elif self._profile is None:
            raise ValueError("codec cachegen needs the profile of a model: give its file")
        else:
            self._codec = CacheGen(self._profile, level)

    def frame(self, chunk: RawChunk, key: bytes) -> bytes:
        """Raises ValueError for what this codec cannot take."""
        is_plain = not _is_packed(chunk.shape) or not isinstance(self._codec, CacheGen)
        if is_plain or self._order is None:
            return pack(self._codec, self._bits(chunk), key, chunk.layout)
        flat = self._rounded(chunk)
        packing = self._order.packing(flat, chunk.shape)
        bits = in_plain_order(flat, chunk.shape, packing)
        return pack(self._codec, bits, key, chunk.layout_in(packing))

    def content(self, frame: bytes, key: bytes, like: RawChunk) -> NDArray[np.uint8]:
        """The bytes for a buffer of this type and shape, whose content does not count: as many as
        it has, or fewer where its shape says nothing. Raises FrameError for any other number, and
        for bytes that were laid out otherwise."""
        packings = {}
        if self._order is not None and _is_packed(like.shape):
            packings = {like.layout_in(each): each for each in self._order.possible(like.shape)}
        layout = layout_among(frame, packings) or like.layout
        bits = unpack(frame, key, self._others, layout)
        size = len(like.content)
        flat = _flat(bits, like.shape, packings.get(layout))
        if not _is_known(like.shape):
            found = _unpadded(flat.view(np.uint8))
            if len(found) <= size:
                return found
        elif bits.nbytes == size:
            return np.ascontiguousarray(flat).view(np.uint8)
        elif like.dtype == FLOAT32 and 2 * bits.nbytes == size:
            return from_bits(flat).view(np.uint8)
        raise FrameError(f"{bits.nbytes} bytes for a buffer of {size}")

    @property
    def _others(self) -> dict[int, Callable[[int], KvCodec]]:
        """Codecs that need more than a frame."""
        return {} if self._profile is None else {CacheGen.number: partial(CacheGen, self._profile)}

    def _bits(self, chunk: RawChunk) -> Bits:
        if not self._codec.is_exact:
            return _shaped(self._rounded(chunk), chunk.shape)
        known = _is_known(chunk.shape)
        flat = np.frombuffer(chunk.content if known else _padded(chunk.content), dtype="<u2")
        return _shaped(flat.astype(np.uint16), chunk.shape)

    def _rounded(self, chunk: RawChunk) -> Bits:
        if not _is_known(chunk.shape):
            raise ValueError(f"codec {self._codec.name} takes no chunk of shape {chunk.shape}")
        if chunk.dtype == BFLOAT16:
            return np.frombuffer(chunk.content, dtype="<u2").astype(np.uint16)
        if chunk.dtype == FLOAT32:
            return to_bits(np.frombuffer(chunk.content, dtype="<f4"))
        raise ValueError(f"codec {self._codec.name} takes no KV in {chunk.dtype}: use lossless")


def _padded(content: bytes | memoryview) -> bytes:
    """To a multiple of four bytes; the last one tells how many were added."""
    added = 4 - len(content) % 4
    return bytes(content) + bytes([added]) * added


def _unpadded(padded: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Raises FrameError."""
    added = int(padded[-1]) if len(padded) else 0
    if not 1 <= added <= 4:
        raise FrameError("no end of its content")
    return padded[:-added]


def _is_packed(shape: tuple[int, ...]) -> bool:
    return len(shape) == 3


def _is_known(shape: tuple[int, ...]) -> bool:
    return _is_packed(shape) or (len(shape) == 4 and shape[0] == 2)


def _shaped(flat: Bits, shape: tuple[int, ...]) -> Bits:
    """As codecs have it, [layers, 2, tokens, channels]. Raises ValueError."""
    if not _is_known(shape):
        return flat.reshape(1, 2, 1, -1)
    if len(shape) == 4:
        planes = flat.reshape(2, shape[1], shape[2], -1)
        return np.ascontiguousarray(planes.transpose(1, 0, 2, 3))
    layers, tokens = shape[:2]
    halves = flat.reshape(layers, 2, -1)
    # Of keys codecs group the tokens of a channel, of values the channels of a token: both halves
    # are laid so that such a group is beside each other in memory.
    first = halves[:, 0].reshape(layers, -1, tokens).transpose(0, 2, 1)
    second = halves[:, 1].reshape(layers, tokens, -1)
    return np.stack((first, second), axis=1)


def _flat(bits: Bits, shape: tuple[int, ...], packing: EnginePacking | None) -> Bits:
    """What `_shaped`, or `in_plain_order`, was given. Raises FrameError."""
    if not _is_known(shape):
        return bits.reshape(-1)
    if packing is not None:
        return in_packing(bits, shape, packing)
    if len(shape) == 4:
        return np.ascontiguousarray(bits.transpose(1, 0, 2, 3)).reshape(-1)
    layers = bits.shape[0]
    first = bits[:, 0].transpose(0, 2, 1).reshape(layers, -1)
    return np.concatenate((first, bits[:, 1].reshape(layers, -1)), axis=1).reshape(-1)
