"""Layers that stay as they are, with a change of low rank that learns."""

from typing import Any

import numpy as np
import torch

from rag_store.embedders.adapter import Changes

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


def attach(model: Any, rank: int) -> dict[str, LowRank]:
    """Have all linear layers of an encoder learn, and nothing else of it; by their weights' names.

    A pooler is left out: the mean of the last layer does not use it.
    """
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
    return attached


def changes(attached: dict[str, LowRank]) -> Changes:
    """What the layers have learned."""
    return {
        name: (_half(_SCALE * each.up.detach()), _half(each.down.detach()))
        for name, each in attached.items()
    }


def _half(values: torch.Tensor) -> Any:
    return values.numpy().astype(np.float16)
