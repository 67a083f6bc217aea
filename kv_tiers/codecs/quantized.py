"""Fewer bits a value, between the least and the largest of a group.

Groups are of keys by channel and of values by token: keys have channels that are far larger than
others, values have not (KIVI, Liu et al., 2024).
"""

from abc import abstractmethod
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from kv_tiers.codecs.codec import Bits, Floats32, KvCodec, Shape, finite, from_bits, to_bits

GROUP = 32
"""Values that share a scale."""


class QuantizedCodec(KvCodec):
    """Codes of `width` bits; of each group the least value and the step, as bfloat16."""

    width: ClassVar[int]

    def encode(self, bits: Bits) -> bytes:
        values = finite(from_bits(bits))
        parts = [self._encoded(rows) for rows in (_keys(values), _values(values))]
        return b"".join(parts)

    def decode(self, payload: bytes, shape: Shape) -> Bits:
        layers, _, tokens, channels = shape
        found = np.empty(shape, dtype=np.float32)
        rest = memoryview(payload)
        keys, rest = self._decoded(rest, (layers, channels, tokens))
        values, rest = self._decoded(rest, (layers, tokens, channels))
        if len(rest):
            raise ValueError(f"{len(rest)} bytes too many")
        found[:, 0], found[:, 1] = keys.transpose(0, 2, 1), values
        return to_bits(found)

    def _encoded(self, rows: Floats32) -> bytes:
        groups = _grouped(rows)
        low = groups.min(axis=-1, keepdims=True, initial=np.inf)
        high = groups.max(axis=-1, keepdims=True, initial=-np.inf)
        low, high = np.where(np.isfinite(low), low, 0.0), np.where(np.isfinite(high), high, 0.0)
        # Halves, as the difference of the two largest numbers is infinite.
        step = 2 * (high / 2 - low / 2) / (2**self.width - 1)
        scales = to_bits(np.concatenate([low, step], axis=-1).astype(np.float32))
        low, step = np.split(finite(from_bits(scales)), 2, axis=-1)
        safe = np.where((step > 0) & np.isfinite(step), step, 1.0)
        codes = np.rint(groups / safe - low / safe).clip(0, 2**self.width - 1).astype(np.uint8)
        return scales.astype("<u2").tobytes() + self.packed(codes.reshape(-1)).tobytes()

    def _decoded(
        self, payload: memoryview, shape: tuple[int, int, int]
    ) -> tuple[Floats32, memoryview]:
        rows, length = shape[0] * shape[1], shape[2]
        groups = -(-length // GROUP)
        scales_bytes, codes_bytes = 4 * rows * groups, rows * groups * GROUP * self.width // 8
        if len(payload) < scales_bytes + codes_bytes:
            raise ValueError("it ends too early")
        told = np.frombuffer(payload[:scales_bytes], dtype="<u2").astype(np.uint16)
        scales = finite(from_bits(told)).reshape(rows, groups, 2)
        codes = self.unpacked(
            np.frombuffer(payload[scales_bytes : scales_bytes + codes_bytes], dtype=np.uint8)
        )
        groups_of = codes.reshape(rows, groups, GROUP).astype(np.float32)
        with np.errstate(over="ignore"):
            found = groups_of * scales[..., 1:] + scales[..., :1]
        whole = finite(found.astype(np.float32)).reshape(rows, groups * GROUP)[:, :length]
        return whole.reshape(shape), payload[scales_bytes + codes_bytes :]

    @abstractmethod
    def packed(self, codes: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Codes of a byte each, an even number of them, in as few bytes as they need."""

    @abstractmethod
    def unpacked(self, packed: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """What `packed` was given."""


def _keys(values: Floats32) -> Floats32:
    """[layers, channels, tokens]: a group is of one channel."""
    return np.ascontiguousarray(values[:, 0].transpose(0, 2, 1))


def _values(values: Floats32) -> Floats32:
    """[layers, tokens, channels]: a group is of one token."""
    return np.ascontiguousarray(values[:, 1])


def _grouped(rows: Floats32) -> Floats32:
    """[rows, groups, GROUP], the last group filled up with its last value."""
    flat: Floats32 = rows.reshape(rows.shape[0] * rows.shape[1], rows.shape[2])
    missing = -flat.shape[1] % GROUP
    if flat.shape[1] and missing:
        flat = np.concatenate([flat, np.repeat(flat[:, -1:], missing, axis=1)], axis=1)
    return flat.reshape(len(flat), flat.shape[1] // GROUP, GROUP)
