"""Integers of hqq (half-quadratic quantization), which looks for the zero point that fits a group
best. Keys in groups of a channel, values in groups of a token, as `intN-mixed`."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kv_policies.coding import BLOCK_TOKENS, Coded, CodedPolicy, Part
from kv_policies.policy import PolicyError

BITS = (8, 4, 2)


@dataclass(frozen=True)
class Hqq(CodedPolicy):
    name = "hqq"
    summary = "hqq's integers; first and recent tokens as they are"
    needs = "hqq"

    bits: int = 4

    def __post_init__(self) -> None:
        if self.bits not in BITS:
            raise PolicyError(f"hqq: {self.bits} bits: give 8, 4 or 2")

    def encode(self, states: Tensor, part: Part) -> Coded:
        """Each text by itself: what hqq looks for is over all that it is given."""
        return _HqqIntegers(
            tuple(_quantized(each, self.bits, part.is_keys) for each in states),
            part.is_keys,
            states.dtype,
        )


@dataclass(frozen=True, slots=True)
class _HqqIntegers(Coded):
    """Of each text what hqq packed, and how it is read again."""

    texts: tuple[tuple[Tensor, dict[str, Any]], ...]
    is_turned: bool
    dtype: torch.dtype

    def decoded(self) -> Tensor:
        from hqq.core.quantize import Quantizer

        states = torch.stack([Quantizer.dequantize(*each) for each in self.texts])
        turned = states.transpose(-1, -2) if self.is_turned else states
        return turned.flatten(-3, -2).to(self.dtype)

    def held(self) -> Iterable[Tensor]:
        for packed, about in self.texts:
            yield from (packed, about["scale"], about["zero"])


def _quantized(states: Tensor, bits: int, is_turned: bool) -> tuple[Tensor, dict[str, Any]]:
    """Of [KV heads, tokens, head dim]."""
    from hqq.core.quantize import Quantizer

    blocks = torch.unflatten(states.float(), -2, (-1, BLOCK_TOKENS))
    rows = (blocks.transpose(-1, -2) if is_turned else blocks).contiguous()
    packed, about = Quantizer.quantize(
        rows,
        nbits=bits,
        axis=1,
        group_size=rows.shape[-1],
        compute_dtype=torch.float32,
        device=str(states.device),
    )
    halves = {name: about[name].half() for name in ("scale", "zero")}
    return packed, about | halves
