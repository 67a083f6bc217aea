"""The codecs that need nothing but a chunk, by name."""

from collections.abc import Callable, Mapping

from kv_tiers.codecs.codec import KvCodec
from kv_tiers.codecs.plain import Lossless, Raw
from kv_tiers.codecs.quantized import Int4, Int8

CODECS: Mapping[str, Callable[[], KvCodec]] = {
    each.name: each for each in (Raw, Lossless, Int8, Int4)
}
