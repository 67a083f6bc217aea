"""Layers of which every weight learns, and what they have learned at a low rank."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch

from rag_store.embedders.adapter import Changes, Half

_LEFT_OUT = ("embeddings", "pooler")
"""Words are many and most are rare; the mean of the last layer does not use a pooler."""


@dataclass(frozen=True, slots=True)
class WholeLayers:
    """`before` are the weights of the layers as they came, by their names."""

    model: Any
    before: Mapping[str, torch.Tensor]
    rank: int
    rate: ClassVar[float] = 5e-5
    head_rate: ClassVar[float] = 1e-3

    @classmethod
    def of(cls, model: Any, rank: int) -> "WholeLayers":
        """Have the layers of an encoder learn, and nothing else of it."""
        model.requires_grad_(False)
        before = {}
        for name, each in model.named_parameters():
            if each.dim() <= 2 and not any(part in name for part in _LEFT_OUT):
                before[name] = each.detach().clone()
                each.requires_grad_(True)
        return cls(model, before, rank)

    def changes(self) -> Changes:
        """How they differ from what they were: of all such of this rank, the nearest."""
        now = dict(self.model.named_parameters())
        return {
            name: _nearest(now[name].detach() - old, self.rank) for name, old in self.before.items()
        }


def _nearest(change: torch.Tensor, rank: int) -> tuple[Half, Half]:
    """Up and down by the largest singular values (Eckart and Young, 1936); a vector as it is."""
    if change.dim() == 1:
        return change[:, None].numpy().astype(np.float16), np.ones((1, 1), np.float16)
    left, sizes, right = torch.linalg.svd(change, full_matrices=False)
    roots = sizes[:rank].sqrt()
    up, down = left[:, :rank] * roots, roots[:, None] * right[:rank]
    return up.numpy().astype(np.float16), down.numpy().astype(np.float16)
