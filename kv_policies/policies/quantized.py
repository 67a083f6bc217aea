"""Integers of 8, 4 or 2 bits with a scale and a smallest value, of a token or of a channel.

`token`: each token of a head has its own scale. `channel`: each channel has one, of a block of
tokens, so that an outlier channel costs the others nothing. `mixed`: keys by channel and values by
token (KIVI: Liu et al., arXiv:2402.02750).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from kv_policies.coding import BLOCK_TOKENS, Coded, CodedPolicy, Part
from kv_policies.policy import at_least

AXES = ("token", "channel", "mixed")
BITS = (8, 4, 2)


@dataclass(frozen=True)
class Quantized(CodedPolicy):
    summary = "packed integers; first and recent tokens as they are"

    first_tokens: int = 4
    recent_tokens: int = 64
    bits: int = field(default=4, kw_only=True)
    axis: str = field(default="mixed", kw_only=True)

    def __post_init__(self) -> None:
        at_least(0, self, "first_tokens", "recent_tokens")

    @classmethod
    def variants(cls) -> Mapping[str, Mapping[str, Any]]:
        return {f"int{bits}-{axis}": {"bits": bits, "axis": axis} for bits in BITS for axis in AXES}

    @property
    def family(self) -> str:
        return f"int{self.bits}-{self.axis}"

    def encode(self, states: Tensor, part: Part) -> Coded:
        by_channel = self.axis == "channel" or (self.axis == "mixed" and part.is_keys)
        return PackedIntegers.of(states, self.bits, by_channel)


@dataclass(frozen=True, slots=True)
class PackedIntegers(Coded):
    """`packed` is [batch, heads, blocks, block tokens, head dim · bits / 8] in uint8; `scale` and
    `low` are float16 of [batch, heads, blocks, 1, head dim] or [… blocks, block tokens, 1]."""

    packed: Tensor
    scale: Tensor
    low: Tensor
    bits: int
    dtype: torch.dtype

    @classmethod
    def of(cls, states: Tensor, bits: int, by_channel: bool) -> "PackedIntegers":
        """Round to the nearest of 2^bits even steps between smallest and largest value."""
        blocks = torch.unflatten(states.float(), -2, (-1, BLOCK_TOKENS))
        over = -2 if by_channel else -1
        low = blocks.amin(dim=over, keepdim=True)
        scale = (blocks.amax(dim=over, keepdim=True) - low) / (2**bits - 1)
        low, scale = low.half(), scale.clamp_min(1e-6).half()
        steps = ((blocks - low.float()) / scale.float()).round().clamp(0, 2**bits - 1)
        return cls(_packed(steps.to(torch.uint8), bits), scale, low, bits, states.dtype)

    def decoded(self) -> Tensor:
        steps = _unpacked(self.packed, self.bits)
        states = steps * self.scale.float() + self.low.float()
        return states.flatten(-3, -2).to(self.dtype)

    def held(self) -> Iterable[Tensor]:
        return self.packed, self.scale, self.low


def _packed(steps: Tensor, bits: int) -> Tensor:
    """As many steps to the byte as fit, the first in the lowest bits."""
    each = 8 // bits
    grouped = torch.unflatten(steps, -1, (-1, each))
    packed: Tensor = grouped[..., 0].clone()
    for place in range(1, each):
        packed |= grouped[..., place] << (bits * place)
    return packed


def _unpacked(packed: Tensor, bits: int) -> Tensor:
    places = range(0, 8, bits)
    return torch.stack([packed >> at & (2**bits - 1) for at in places], dim=-1).flatten(-2)
