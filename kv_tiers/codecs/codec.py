"""What a codec is, and bfloat16 as numpy knows it: the upper half of a float32."""

from abc import ABC, abstractmethod
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

Bits = NDArray[np.uint16]
Floats32 = NDArray[np.float32]
Shape = tuple[int, int, int, int]
"""Layers, 2, tokens, channels."""


class KvCodec(ABC):
    """Turns a chunk into bytes and back. A subclass has these two methods and a name; `level` goes
    into the frame, for codecs of several."""

    name: ClassVar[str]
    number: ClassVar[int]
    """Of the format, in every frame: it never changes."""
    is_exact: ClassVar[bool] = False
    """Whether what comes back is bit for bit what was given."""
    level: int = 0

    @abstractmethod
    def encode(self, bits: Bits) -> bytes:
        """Of [layers, 2, tokens, channels]."""

    @abstractmethod
    def decode(self, payload: bytes, shape: Shape) -> Bits:
        """Of what `encode` returned. Raises ValueError for what it cannot have returned."""


def from_bits(bits: Bits) -> Floats32:
    """bfloat16 as float32, exactly."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def to_bits(values: Floats32) -> Bits:
    """float32 rounded to the nearest bfloat16, to even; what is no number stays none."""
    wide = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    rounded = (wide + 0x7FFF + ((wide >> 16) & 1)) >> 16
    return np.where(np.isnan(values), (wide >> 16) | 0x40, rounded).astype(np.uint16)


def finite(values: Floats32) -> Floats32:
    """With zeros for what is no number and the largest for what is infinite: scales are of numbers
    alone."""
    found: Floats32 = np.nan_to_num(values, nan=0.0, posinf=3.3e38, neginf=-3.3e38)
    return found
