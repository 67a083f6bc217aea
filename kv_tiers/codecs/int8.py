"""A byte a value."""

import numpy as np
from numpy.typing import NDArray

from kv_tiers.codecs.quantized import QuantizedCodec


class Int8(QuantizedCodec):
    name, number, width = "int8", 2, 8

    def packed(self, codes: NDArray[np.uint8]) -> NDArray[np.uint8]:
        return codes

    def unpacked(self, packed: NDArray[np.uint8]) -> NDArray[np.uint8]:
        return packed
