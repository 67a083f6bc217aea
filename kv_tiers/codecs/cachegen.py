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
from hashlib import sha256
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
DIGEST_BYTES = 8
_FAMILY = constriction.stream.model.QuantizedLaplace(-LIMIT, LIMIT)
_ANCHOR_LIMIT = 127


@dataclass(frozen=True, slots=True)
class CacheGenProfile:
    """By layer and kind: whether differences are coded (`deltas`); by channel too the `mean` of
    values, the `spread` (mean absolute size) of what is coded, and the `most` of an anchor. The
    channels are of so many `heads`."""

    deltas: NDArray[np.bool_]
    mean: Floats32
    spread: Floats32
    most: Floats32
    heads: int = 1

    @classmethod
    def fitted(
        cls, chunks: Sequence[Bits], *, heads: int = 1, deltas: bool | None = None
    ) -> "CacheGenProfile":
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
            heads=heads,
        )

    @property
    def digest(self) -> bytes:
        """What tells its frames from those of another profile."""
        parts = (self.deltas, self.mean, self.spread, self.most)
        return sha256(b"".join(each.tobytes() for each in parts)).digest()[:DIGEST_BYTES]

    def agreement(self, bits: Bits, layers: NDArray[np.intp]) -> float:
        """The correlation of channel means with its own, of keys or of values, whichever is less;
        `bits` are of these layers. 0 where means do not differ."""
        found = finite(from_bits(bits[:, :, FIRST:])).mean(axis=2, dtype=np.float64)
        return min(_correlation(found[:, kind], self.mean[layers, kind]) for kind in (0, 1))

    def write(self, path: Path) -> None:
        """Keep it as JSON."""
        told = {
            "heads": self.heads,
            "deltas": self.deltas.tolist(),
            **{name: getattr(self, name).tolist() for name in ("mean", "spread", "most")},
        }
        path.write_text(json.dumps(told), encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> "CacheGenProfile":
        """What `write` kept. Raises OSError, and ValueError for what it cannot have written."""
        try:
            told = json.loads(path.read_text(encoding="utf-8"))
            mean, spread, most = (
                np.array(told[name], dtype=np.float32) for name in ("mean", "spread", "most")
            )
            deltas, heads = np.array(told["deltas"], dtype=np.bool_), int(told["heads"])
            layers, kinds, channels = mean.shape
            is_whole = kinds == 2 and channels % heads == 0
        except (LookupError, TypeError, ValueError, ArithmeticError, RecursionError) as error:
            raise ValueError(
                f"{path} is no profile of CacheGen: make one with `kvswarm kv codecs`"
            ) from error
        alike = spread.shape == most.shape == mean.shape and deltas.shape == (layers, kinds)
        if not is_whole or not alike or heads < 1:
            raise ValueError(f"{path} is no profile of CacheGen: its sizes differ")
        usual = np.isfinite(mean).all() and (np.isfinite(spread) & (spread > 0)).all()
        if not usual or not (np.isfinite(most) & (most > 0)).all():
            raise ValueError(f"{path} is no profile of CacheGen: it has values that none has")
        return cls(deltas, mean, spread, most, heads)


def _correlation(one: NDArray[np.float64], other: Floats32) -> float:
    """Of two tables, the mean of each row left out."""
    first, second = (each - each.mean(axis=1, keepdims=True) for each in (one, other))
    lengths = float(np.sqrt((first**2).sum() * (second**2).sum()))
    return float((first * second).sum()) / lengths if lengths > 0 else 0.0


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
        self.level, self.deltas, self._mean = level, profile.deltas, profile.mean[:, :, None]
        self._digest = profile.digest
        layers = len(profile.deltas)
        thirds = np.minimum(2, 3 * np.arange(layers) // max(1, layers))
        width = (BINS[level] * np.array(DEPTH))[thirds, None, None]
        self._step = (profile.spread * width.astype(np.float32))[:, :, None]
        """Of a bin."""
        scale = (1 / width).astype(np.float32)
        self.scale: Floats32 = np.broadcast_to(scale, profile.spread.shape)
        """Of the symbols' distribution, by layer, kind and channel."""
        self._anchor_step = profile.most[:, :, None] / _ANCHOR_LIMIT

    def encode(self, bits: Bits) -> bytes:
        """The profile's digest, the first tokens, the lengths of all streams, and a stream of each
        layer and kind."""
        anchors, symbols = self.quantized(bits)
        coded, streams = self.coded(bits.shape[2]), []
        for at in np.ndindex(self.deltas.shape):
            own = symbols[at][coded[at]]
            head = anchors[at].tobytes() if self.deltas[at] else b""
            streams.append(head + encoded(own, np.broadcast_to(self.scale[at], own.shape)))
        first = np.ascontiguousarray(bits[:, :, :FIRST]).astype("<u2").tobytes()
        lengths = np.array([len(each) for each in streams], dtype="<u4")
        return self._digest + first + lengths.tobytes() + b"".join(streams)

    def decode(self, payload: bytes, shape: Shape) -> Bits:
        if payload[:DIGEST_BYTES] != self._digest:
            raise ValueError("it is of another profile")
        payload = payload[DIGEST_BYTES:]
        layers, kinds, tokens, channels = shape
        count, kept = kinds * layers, min(FIRST, tokens)
        begin = 2 * count * kept * channels
        head = begin + 4 * count
        if len(payload) < head:
            raise ValueError("it ends too early")
        lengths = np.frombuffer(payload[begin:head], dtype="<u4")
        if head + int(lengths.sum()) != len(payload):
            raise ValueError("its streams are not as long as it says")
        anchors = np.zeros((layers, kinds, -(-tokens // GROUP), channels), dtype=np.int8)
        symbols, coded = np.zeros(shape, dtype=np.int32), self.coded(tokens)
        for at, length in zip(np.ndindex(layers, kinds), lengths.tolist(), strict=True):
            stream, head = payload[head : head + length], head + length
            size = anchors[at].size if self.deltas[at] else 0
            if len(stream) < size:
                raise ValueError("a stream ends too early")
            if size:
                anchors[at] = np.frombuffer(stream[:size], dtype=np.int8).reshape(-1, channels)
            scales = np.broadcast_to(self.scale[at], (int(coded[at].sum()), channels))
            symbols[at][coded[at]] = decoded(stream[size:], scales)
        bits = self.restored(anchors, symbols)
        first = np.frombuffer(payload[:begin], dtype="<u2")
        bits[:, :, :FIRST] = first.reshape(layers, kinds, kept, channels)
        return bits

    def quantized(self, bits: Bits) -> tuple[NDArray[np.int8], NDArray[np.int32]]:
        """Anchors of all groups in 8 bits, 0 where differences do not pay, and symbols of all
        tokens. The anchor of the first group is the first token that is not kept as it is."""
        centred = finite(from_bits(bits)) - self._mean
        tokens = bits.shape[2]
        places = np.arange(0, tokens, GROUP)
        places[:1] = min(FIRST, max(0, tokens - 1))
        wide = np.rint(centred[:, :, places] / self._anchor_step)
        wide[~self.deltas] = 0
        anchors = wide.clip(-_ANCHOR_LIMIT, _ANCHOR_LIMIT).astype(np.int8)
        differences = centred - self._origins(anchors, tokens)
        reach = LIMIT * self._step
        return anchors, np.rint(differences.clip(-reach, reach) / self._step).astype(np.int32)

    def restored(self, anchors: NDArray[np.int8], symbols: NDArray[np.int32]) -> Bits:
        """The tokens of these symbols, the first of which is the first of a group."""
        found = self._origins(anchors, symbols.shape[2]) + symbols * self._step
        return to_bits(found.astype(np.float32) + self._mean)

    def coded(self, tokens: int) -> NDArray[np.bool_]:
        """By layer, kind and token whether there are symbols: of all but the first tokens, and with
        differences but the anchors."""
        places = np.arange(tokens)
        found: NDArray[np.bool_] = (places % GROUP != 0) | ~self.deltas[:, :, None]
        return found & (places >= FIRST)

    def _origins(self, anchors: NDArray[np.int8], tokens: int) -> Floats32:
        """What each token differs from: its anchor, or nothing."""
        found = (anchors * self._anchor_step).astype(np.float32)
        return np.repeat(found, GROUP, axis=2)[:, :, :tokens]


def encoded(symbols: NDArray[np.int32], scales: Floats32) -> bytes:
    """Symbols by an entropy coder whose table is of a scale for each."""
    coder = constriction.stream.stack.AnsCoder()
    if symbols.size:
        wide = scales.reshape(-1).astype(np.float64)
        coder.encode_reverse(symbols.reshape(-1), _FAMILY, np.zeros(symbols.size), wide)
    words: NDArray[np.uint32] = coder.get_compressed()
    return words.astype("<u4").tobytes()


def decoded(content: bytes, scales: Floats32) -> NDArray[np.int32]:
    """What was encoded with these scales, in their shape. Raises ValueError."""
    if len(content) % 4:
        raise ValueError("a stream ends too early")
    if not scales.size:
        return np.zeros(scales.shape, dtype=np.int32)
    words = np.frombuffer(content, dtype="<u4").astype(np.uint32)
    wide = scales.reshape(-1).astype(np.float64)
    coder = constriction.stream.stack.AnsCoder(words)
    symbols: NDArray[np.int32] = coder.decode(_FAMILY, np.zeros(scales.size), wide)
    return symbols.reshape(scales.shape)
