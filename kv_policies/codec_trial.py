"""Codecs of KV tried on a real model: bytes, errors, what the model then says, and how fast.

Half of the texts fit the profile of CacheGen, the other half are reported.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from math import isfinite
from pathlib import Path
from statistics import fmean, median

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import kl_div
from transformers import DynamicCache, PreTrainedModel

from kv_policies.policy import ModelShape, PolicyError, require_size
from kv_policies.subject import Subject, subject_of
from kv_tiers.codecs import (
    CODECS,
    Bits,
    CacheGen,
    CacheGenProfile,
    KvCodec,
    from_bits,
    pack,
    unpack,
)

LEVELS, COMPARED = (0, 1, 2, 3, 4), (1, 3)
CHOSEN = "chosen"
KEY = b"trial"


@dataclass(frozen=True, slots=True)
class CodecPlan:
    """So many `texts`, of which every second fits the profile: `prompt_tokens` of each are encoded,
    `read_tokens` after them read by the model."""

    texts: int = 16
    prompt_tokens: int = 512
    read_tokens: int = 64

    def check(self) -> None:
        """Raise PolicyError for what cannot be tried."""
        least = {"texts": 2, "prompt_tokens": 32}
        for name, value in asdict(self).items():
            require_size(name.replace("_", " "), value, least.get(name, 1))


@dataclass(frozen=True, slots=True)
class CodecRow:
    """Of one codec, means over the texts that are reported. `deltas` says where CacheGen codes
    differences: `chosen` by layer, `always` or `never`, empty of other codecs. Errors are root mean
    squares over the spread of each channel; `kl_nats` and `top1_agreement` of the tokens read,
    against exact KV. `encode_mb_per_s` and `decode_mb_per_s` are of bfloat16 KV."""

    codec: str
    deltas: str
    bytes_per_token: float
    share: float
    key_error: float
    value_error: float
    kl_nats: float
    top1_agreement: float
    encode_mb_per_s: float
    decode_mb_per_s: float


@dataclass(frozen=True, slots=True)
class CodecTrial:
    """All rows; `delta_layers` of how many `layers` code differences, of keys and of values;
    `prefill_tokens_per_s` what the model computes; `profile` is CacheGen's, of its choice."""

    rows: tuple[CodecRow, ...]
    profile: CacheGenProfile
    layers: int
    delta_layers: tuple[int, int]
    prefill_tokens_per_s: float

    def pays_from_mb_per_s(self, row: CodecRow) -> float | None:
        """The bandwidth from which on loading a token is faster than computing it; None where
        decoding alone takes longer. Decoding follows the transfer."""
        compute_s = 1 / self.prefill_tokens_per_s
        decode_s = row.bytes_per_token / row.share / (1e6 * row.decode_mb_per_s)
        if decode_s >= compute_s:
            return None
        return row.bytes_per_token / (compute_s - decode_s) / 1e6


@dataclass(frozen=True, slots=True)
class _TextRead:
    """A text's KV, and what the model says of the tokens after it."""

    bits: Bits
    after: Tensor
    logits: Tensor
    prefill_s: float


def try_codecs(
    model: Path,
    texts: Sequence[str],
    *,
    plan: CodecPlan | None = None,
    say: Callable[[str], None] = lambda said: None,
) -> CodecTrial:
    """Every codec, CacheGen at every level, with differences chosen, always and never. Raises
    PolicyError."""
    plan = plan or CodecPlan()
    plan.check()
    with subject_of(model, "cpu") as subject:
        tokens = _cut(subject, texts, plan)
        subject.model.set_attn_implementation("sdpa")
        read = []
        for number, each in enumerate(tokens, 1):
            say(f"text {number} of {len(tokens)}")
            read.append(_read(subject.model, each, plan))
        heads = ModelShape.of(subject.model.config).kv_heads
        fitted = partial(CacheGenProfile.fitted, [each.bits for each in read[::2]], heads=heads)
        profiles = {
            name: fitted(deltas=forced)
            for name, forced in ((CHOSEN, None), ("always", True), ("never", False))
        }
        rows = []
        for codec, deltas, levels in _codecs(profiles):
            row = _row(codec, deltas, levels, subject.model, read[1::2])
            say(f"{row.codec}: {row.share:.0%} of the bytes, KL {row.kl_nats:.2g}")
            rows.append(row)
    chosen = profiles[CHOSEN].deltas.sum(axis=0)
    return CodecTrial(
        rows=tuple(rows),
        profile=profiles[CHOSEN],
        layers=len(profiles[CHOSEN].deltas),
        delta_layers=(int(chosen[0]), int(chosen[1])),
        prefill_tokens_per_s=plan.prompt_tokens / median(each.prefill_s for each in read),
    )


def prompt_kv(model: Path, texts: Sequence[str], prompt_tokens: int) -> tuple[Bits, Bits, float]:
    """KV of two prompts of other texts, and prompt tokens computed a second, in float32 where the
    processor has no kernels for the model's own type. Raises PolicyError."""
    plan = CodecPlan(texts=2, prompt_tokens=prompt_tokens, read_tokens=1)
    plan.check()
    with subject_of(model, "cpu") as subject:
        tokens = _cut(subject, texts, plan)
        subject.model.set_attn_implementation("sdpa")
        one, other = (_read(subject.model, each, plan) for each in tokens)
        subject.model.float()
        wide = _read(subject.model, tokens[1], plan)
    return one.bits, other.bits, prompt_tokens / min(other.prefill_s, wide.prefill_s)


Levels = Mapping[int, Callable[[int], KvCodec]]


def _codecs(profiles: Mapping[str, CacheGenProfile]) -> Iterator[tuple[KvCodec, str, Levels]]:
    for make in CODECS.values():
        yield make(), "", {}
    for deltas, profile in profiles.items():
        made = partial(CacheGen, profile)
        for level in LEVELS if deltas == CHOSEN else COMPARED:
            yield made(level), deltas, {CacheGen.number: made}


def _cut(subject: Subject, texts: Sequence[str], plan: CodecPlan) -> list[Tensor]:
    """Texts of the length that the plan wants, from all of them one after the other."""
    length = plan.prompt_tokens + plan.read_tokens
    subject.require_positions(plan.prompt_tokens, plan.read_tokens, "read")
    flat = [token for text in texts for token in subject.tokens(text)]
    if len(flat) < plan.texts * length:
        raise PolicyError(
            f"{len(flat):,} tokens are too few for {plan.texts} texts of {length}: give more texts,"
            " or fewer or shorter ones"
        )
    return [torch.tensor([flat[at * length : (at + 1) * length]]) for at in range(plan.texts)]


def _read(model: PreTrainedModel, tokens: Tensor, plan: CodecPlan) -> _TextRead:
    cache = DynamicCache()
    since_s = time.perf_counter()
    model(input_ids=tokens[:, : plan.prompt_tokens], past_key_values=cache, logits_to_keep=1)
    prefill_s = time.perf_counter() - since_s
    kept = [torch.stack((each.keys[0], each.values[0])) for each in cache.layers]
    whole = torch.stack(kept).transpose(2, 3).flatten(3)  # layers, 2, tokens, channels
    bits = whole.to(torch.bfloat16).view(torch.uint16).numpy()
    after = tokens[:, plan.prompt_tokens :]
    return _TextRead(bits, after, _said(model, bits, after), prefill_s)


def _said(model: PreTrainedModel, bits: Bits, after: Tensor) -> Tensor:
    """Log-probabilities of each next token, read after this KV: [tokens, vocabulary]."""
    layers, _, tokens, _ = bits.shape
    head_dim = ModelShape.of(model.config).head_dim
    states = torch.from_numpy(bits).view(torch.bfloat16).view(layers, 2, 1, tokens, -1, head_dim)
    cache = DynamicCache()
    for layer, pair in enumerate(states.transpose(3, 4).to(model.dtype)):
        cache.update(pair[0], pair[1], layer)
    logits: Tensor = model(input_ids=after, past_key_values=cache).logits[0]
    return logits.float().log_softmax(-1)


def _row(
    codec: KvCodec, deltas: str, levels: Levels, model: PreTrainedModel, read: Sequence[_TextRead]
) -> CodecRow:
    sizes, encode_s, decode_s, errors, kls, agreed = [], [], [], [], [], []
    for each in read:
        since_s = time.perf_counter()
        frame = pack(codec, each.bits, KEY)
        between_s = time.perf_counter()
        back = unpack(frame, KEY, levels)
        decode_s.append(time.perf_counter() - between_s)
        encode_s.append(between_s - since_s)
        sizes.append(len(frame))
        errors.append(_errors(each.bits, back))
        said = _said(model, back, each.after)
        kls.append(float(kl_div(said, each.logits, reduction="sum", log_target=True)) / len(said))
        agreed.append(float((said.argmax(-1) == each.logits.argmax(-1)).float().mean()))
    if not isfinite(sum(kls)):
        raise PolicyError(f"codec {codec.name}: what the model says is no number any more")
    tokens, plain = read[0].bits.shape[2], read[0].bits.nbytes
    return CodecRow(
        codec=f"{codec.name} {codec.level}" if deltas else codec.name,
        deltas=deltas,
        bytes_per_token=fmean(sizes) / tokens,
        share=fmean(sizes) / plain,
        key_error=fmean(keys for keys, _ in errors),
        value_error=fmean(values for _, values in errors),
        kl_nats=max(0.0, fmean(kls)),
        top1_agreement=fmean(agreed),
        encode_mb_per_s=plain / median(encode_s) / 1e6,
        decode_mb_per_s=plain / median(decode_s) / 1e6,
    )


def _errors(wanted: Bits, found: Bits) -> tuple[float, float]:
    """Of keys and of values."""
    exact = from_bits(wanted)
    spread = np.maximum(exact.std(axis=2, keepdims=True), 1e-6)
    shares = np.sqrt((((from_bits(found) - exact) / spread) ** 2).mean(axis=(0, 2, 3)))
    return float(shares[0]), float(shares[1])
