"""Codecs for chunks of KV on their way to a slower tier: bytes in, bytes out, in checked frames.

    frame = pack(CODECS["int8"](), bits, key)
    bits = unpack(frame, key)

`bits` are bfloat16 values as they lie in memory, of shape [layers, 2, tokens, channels] in uint16:
keys are 0, values 1, channels are KV heads times head size.
"""

from kv_tiers.codecs.cachegen import CacheGen, CacheGenProfile
from kv_tiers.codecs.catalog import CODECS
from kv_tiers.codecs.codec import Bits, KvCodec, from_bits, to_bits
from kv_tiers.codecs.frame import FrameError, layout_among, pack, unpack
from kv_tiers.codecs.int4 import Int4
from kv_tiers.codecs.int8 import Int8
from kv_tiers.codecs.lossless import Lossless
from kv_tiers.codecs.raw import Raw

__all__ = [
    "CODECS",
    "Bits",
    "CacheGen",
    "CacheGenProfile",
    "FrameError",
    "Int4",
    "Int8",
    "KvCodec",
    "Lossless",
    "Raw",
    "from_bits",
    "layout_among",
    "pack",
    "to_bits",
    "unpack",
]
