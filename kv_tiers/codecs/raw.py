"""Bits as they are."""

import numpy as np

from kv_tiers.codecs.codec import Bits, KvCodec, Shape


class Raw(KvCodec):
    """The bits as they are."""

    name, number, is_exact = "raw", 0, True

    def encode(self, bits: Bits) -> bytes:
        return bits.astype("<u2").tobytes()

    def decode(self, payload: bytes, shape: Shape) -> Bits:
        return np.frombuffer(payload, dtype="<u2").reshape(shape).astype(np.uint16)
