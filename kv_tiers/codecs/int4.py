"""Half a byte a value."""

import numpy as np
from numpy.typing import NDArray

from kv_tiers.codecs.quantized import QuantizedCodec


class Int4(QuantizedCodec):
    name, number, width = "int4", 3, 4

    def packed(self, codes: NDArray[np.uint8]) -> NDArray[np.uint8]:
        return (codes[::2] | codes[1::2] << 4).astype(np.uint8)

    def unpacked(self, packed: NDArray[np.uint8]) -> NDArray[np.uint8]:
        return np.stack((packed & 15, packed >> 4), axis=-1).reshape(-1)
