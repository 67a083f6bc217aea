"""Differences to an anchor token, in bins that are finer in early layers, by an entropy coder.

After CacheGen (Liu et al., 2024): tokens are in groups; the first of a group is kept with 8 bits,
the others as their difference to it. A profile, fitted once on other texts of the same model, says
for each layer and kind whether differences are smaller than the values themselves, and how widely
each channel spreads: that is the table of the entropy coder (ANS of the package `constriction`).
The first tokens of a chunk are kept as they are: those of a text are sinks of attention, far larger
than all others.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import constriction
import numpy as np
from numpy.typing import NDArray

from kv_tiers.codecs.codec import Bits, Floats32, KvCodec, Shape, finite, from_bits, to_bits

GROUP = 16
"""Tokens of which the first is the anchor."""
FIRST = 4
"""Tokens that are kept as they are."""
BINS = (0.15, 0.3, 0.5, 0.8, 1.2)
"""Widths of a bin in spreads of a channel, by level."""
DEPTH = (0.6, 0.8, 1.0)
"""By thirds of the layers, from the first: errors of early ones go through all later ones."""
LIMIT = 127
_FAMILY = constriction.stream.model.QuantizedLaplace(-LIMIT, LIMIT)
_ANCHOR_LIMIT = 127


@dataclass(frozen=True, slots=True)
class CacheGenProfile:
    """By layer and kind: whether differences are coded (`deltas`); by channel too the `mean` of
    values, the `spread` (mean absolute size) of what is coded, and the `most` of an anchor."""

    deltas: NDArray[np.bool_]
    mean: Floats32
    spread: Floats32
    most: Floats32

    @classmethod
    def fitted(cls, chunks: Sequence[Bits], *, deltas: bool | None = None) -> "CacheGenProfile":
        """Of chunks of one model, some texts long. `deltas` decides for all, None by layer and
        kind, whichever spreads less. Raises ValueError without any chunk."""
        if not chunks:
            raise ValueError("a profile needs a chunk or more of the model's KV")
        values = [finite(from_bits(chunk[:, :, FIRST:])) for chunk in chunks]
        whole = np.concatenate(values, axis=2)
        mean = whole.mean(axis=2)
        plain = np.abs(whole - mean[:, :, None]).mean(axis=2)
        steps = np.concatenate([_differences(each) for each in values], axis=2)
        apart = np.abs(steps).mean(axis=2) if steps.shape[2] else plain
        coded = np.log(apart + 1e-9).mean(axis=-1) < np.log(plain + 1e-9).mean(axis=-1)
        if deltas is not None:
            coded = np.full(coded.shape, deltas)
        spread = np.where(coded[..., None], apart, plain)
        return cls(
            deltas=coded,
            mean=mean.astype(np.float32),
            spread=np.maximum(spread, 1e-6).astype(np.float32),
            most=np.maximum(np.abs(whole - mean[:, :, None]).max(axis=2), 1e-6).astype(np.float32),
        )

    def write(self, path: Path) -> None:
        """Keep it as JSON."""
        told = {
            "deltas": self.deltas.tolist(),
            **{name: getattr(self, name).tolist() for name in ("mean", "spread", "most")},
        }
        path.write_text(json.dumps(told), encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> "CacheGenProfile":
        """What `write` kept. Raises ValueError, OSError or KeyError."""
        told = json.loads(path.read_text(encoding="utf-8"))
        floats = (np.array(told[name], dtype=np.float32) for name in ("mean", "spread", "most"))
        return cls(np.array(told["deltas"], dtype=np.bool_), *floats)


def _differences(values: Floats32) -> Floats32:
    """Of each token to the first of its group, those first ones left out."""
    tokens = values.shape[2]
    places = np.arange(tokens)
    inside = places % GROUP != 0
    return values[:, :, inside] - values[:, :, (places - places % GROUP)[inside]]


class CacheGen(KvCodec):
    """Of chunks of the model that the profile is of; level 0 is the finest."""

    name, number = "cachegen", 4

    def __init__(self, profile: CacheGenProfile, level: int = 1) -> None:
        if not 0 <= level < len(BINS):
            raise ValueError(f"level {level}: give 0 to {len(BINS) - 1}")
        self._profile, self.level = profile, level

    def encode(self, bits: Bits) -> bytes:
        """The first tokens, the lengths of all streams, and a stream of each layer and kind."""
        values = finite(from_bits(bits))
        first = np.ascontiguousarray(bits[:, :, :FIRST]).astype("<u2").tobytes()
        streams = [
            self._stream(values[layer, kind], layer, kind)
            for layer in range(bits.shape[0])
            for kind in range(2)
        ]
        lengths = np.array([len(each) for each in streams], dtype="<u4")
        return first + lengths.tobytes() + b"".join(streams)

    def decode(self, payload: bytes, shape: Shape) -> Bits:
        layers, kinds, tokens, channels = shape
        count, kept = kinds * layers, min(FIRST, tokens)
        begin = 2 * count * kept * channels
        head = begin + 4 * count
        if len(payload) < head:
            raise ValueError("it ends too early")
        lengths = np.frombuffer(payload[begin:head], dtype="<u4")
        if head + int(lengths.sum()) != len(payload):
            raise ValueError("its streams are not as long as it says")
        edges = head + np.concatenate([[0], np.cumsum(lengths)])
        found = np.empty(shape, dtype=np.float32)
        for place in range(count):
            stream = payload[int(edges[place]) : int(edges[place + 1])]
            found[place // 2, place % 2] = self._values(stream, shape, place // 2, place % 2)
        bits = to_bits(found)
        first = np.frombuffer(payload[:begin], dtype="<u2")
        bits[:, :, :FIRST] = first.reshape(layers, kinds, kept, channels)
        return bits

    def _stream(self, values: Floats32, layer: int, kind: int) -> bytes:
        centred = values - self._profile.mean[layer, kind]
        anchors = self._anchors(centred, layer, kind)
        coded = centred - self._restored(anchors, len(values), layer, kind)
        step, scale = self._bins(layer, kind)
        reach = LIMIT * step
        symbols = np.rint(coded.clip(-reach, reach) / step).astype(np.int32)
        symbols = symbols[self._inside(len(values), layer, kind)]
        coder = constriction.stream.stack.AnsCoder()
        if symbols.size:
            scales = np.broadcast_to(scale, symbols.shape).reshape(-1).astype(np.float64)
            coder.encode_reverse(symbols.reshape(-1), _FAMILY, np.zeros(symbols.size), scales)
        words: NDArray[np.uint32] = coder.get_compressed()
        return anchors.tobytes() + words.astype("<u4").tobytes()

    def _values(self, stream: bytes, shape: Shape, layer: int, kind: int) -> Floats32:
        tokens, channels = shape[2], shape[3]
        kept = -(-tokens // GROUP) * channels if self._profile.deltas[layer, kind] else 0
        if len(stream) < kept or (len(stream) - kept) % 4:
            raise ValueError("a stream ends too early")
        anchors = np.frombuffer(stream[:kept], dtype=np.int8).reshape(-1, channels)
        inside = self._inside(tokens, layer, kind)
        step, scale = self._bins(layer, kind)
        found = self._restored(anchors, tokens, layer, kind)
        count = int(inside.sum())
        if count:
            words = np.frombuffer(stream[kept:], dtype="<u4").astype(np.uint32)
            scales = np.broadcast_to(scale, (count, channels)).reshape(-1).astype(np.float64)
            coder = constriction.stream.stack.AnsCoder(words)
            symbols = coder.decode(_FAMILY, np.zeros(count * channels), scales)
            found[inside] += symbols.reshape(count, channels) * step
        values: Floats32 = found + self._profile.mean[layer, kind]
        return values.astype(np.float32)

    def _inside(self, tokens: int, layer: int, kind: int) -> NDArray[np.bool_]:
        """Which tokens have symbols: all but the first, and with differences but the anchors."""
        places = np.arange(tokens)
        is_coded = places >= FIRST
        return is_coded & (places % GROUP != 0) if self._profile.deltas[layer, kind] else is_coded

    def _anchors(self, centred: Floats32, layer: int, kind: int) -> NDArray[np.int8]:
        """The first token of each group in 8 bits, of the first group the first that is not kept as
        it is; none where differences do not pay."""
        if not self._profile.deltas[layer, kind]:
            return np.empty((0, centred.shape[1]), dtype=np.int8)
        step = self._profile.most[layer, kind] / _ANCHOR_LIMIT
        places = np.arange(0, len(centred), GROUP)
        places[:1] = min(FIRST, max(0, len(centred) - 1))
        anchors: Floats32 = np.rint(centred[places] / step)
        return anchors.clip(-_ANCHOR_LIMIT, _ANCHOR_LIMIT).astype(np.int8)

    def _restored(self, anchors: NDArray[np.int8], tokens: int, layer: int, kind: int) -> Floats32:
        """What each token differs from: its anchor, or nothing."""
        if not len(anchors):
            return np.zeros((tokens, self._profile.mean.shape[-1]), dtype=np.float32)
        step = self._profile.most[layer, kind] / _ANCHOR_LIMIT
        return np.repeat(anchors * step, GROUP, axis=0)[:tokens].astype(np.float32)

    def _bins(self, layer: int, kind: int) -> tuple[Floats32, Floats32]:
        """The width of a bin by channel, and the scale of the symbols' distribution."""
        third = min(2, 3 * layer // max(1, len(self._profile.deltas)))
        width = BINS[self.level] * DEPTH[third]
        step = (self._profile.spread[layer, kind] * width).astype(np.float32)
        return step, np.full_like(step, 1 / width)
