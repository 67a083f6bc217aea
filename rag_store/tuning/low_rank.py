"""Layers that stay as they are, with a change of low rank that learns."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch

from rag_store.embedders.adapter import Changes, Half

_SCALE = 2.0


class LowRank(torch.nn.Module):
    """A linear layer and a change to it, which at first is none."""

    def __init__(self, layer: torch.nn.Linear, rank: int) -> None:
        super().__init__()
        self.layer = layer
        width = layer.in_features
        self.down = torch.nn.Parameter(torch.randn(rank, width) / width**0.5)
        self.up = torch.nn.Parameter(torch.zeros(layer.out_features, rank))

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """Shape [..., inputs] becomes [..., outputs]."""
        change = torch.nn.functional.linear(values, self.down)
        whole: torch.Tensor = self.layer(values)
        return whole + _SCALE * torch.nn.functional.linear(change, self.up)


@dataclass(frozen=True, slots=True)
class LowRankLayers:
    """All linear layers of an encoder, which alone learn; by their weights' names."""

    attached: dict[str, LowRank]
    rate: ClassVar[float] = 5e-4
    head_rate: ClassVar[float] = 1e-2

    @classmethod
    def of(cls, model: Any, rank: int) -> "LowRankLayers":
        """Put them in place of the layers; a pooler is left out, as a mean does not use it."""
        model.requires_grad_(False)
        linear = [
            (name, layer)
            for name, layer in model.named_modules()
            if isinstance(layer, torch.nn.Linear) and "pooler" not in name
        ]
        attached = {}
        for name, layer in linear:
            parent, _, last = name.rpartition(".")
            attached[f"{name}.weight"] = LowRank(layer, rank)
            setattr(model.get_submodule(parent), last, attached[f"{name}.weight"])
        return cls(attached)

    def changes(self) -> Changes:
        """What they have learned."""
        return {
            name: (half(_SCALE * each.up.detach()), half(each.down.detach()))
            for name, each in self.attached.items()
        }


def half(values: torch.Tensor) -> Half:
    """As it is kept, in two bytes a number."""
    return values.numpy().astype(np.float16)
