"""The codecs that need nothing but a chunk, by name."""

from collections.abc import Callable, Mapping

from kv_tiers.codecs.codec import KvCodec
from kv_tiers.codecs.int4 import Int4
from kv_tiers.codecs.int8 import Int8
from kv_tiers.codecs.lossless import Lossless
from kv_tiers.codecs.raw import Raw

CODECS: Mapping[str, Callable[[], KvCodec]] = {
    each.name: each for each in (Raw, Lossless, Int8, Int4)
}
