"""Layers of which every weight learns, and what they have learned at a low rank."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch

from rag_store.embedders.adapter import Changes, Half
from rag_store.tuning.low_rank import half


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
        for name, each in _learning(model):
            before[name] = each.detach().clone()
            each.requires_grad_(True)
        return cls(model, before, rank)

    def changes(self) -> Changes:
        """How they differ from what they were: of all such of this rank, the nearest.

        From now on they differ by no more.
        """
        now, found = dict(self.model.named_parameters()), {}
        with torch.no_grad():
            for name, old in self.before.items():
                up, down = found[name] = _nearest(now[name] - old, self.rank)
                change = torch.from_numpy(up).float() @ torch.from_numpy(down).float()
                now[name].copy_(old + change.reshape(old.shape))
        return found


def _learning(model: Any) -> Iterator[tuple[str, torch.nn.Parameter]]:
    """All but embeddings and what goes with them, and a pooler, which a mean does not use."""
    for path, module in model.named_modules():
        linear = isinstance(module, torch.nn.Linear)
        embeds = isinstance(module, torch.nn.Embedding) or ("embeddings" in path and not linear)
        if embeds or "pooler" in path:
            continue
        for name, each in module.named_parameters(path, recurse=False):
            if each.dim() in (1, 2):
                yield name, each


def _nearest(change: torch.Tensor, rank: int) -> tuple[Half, Half]:
    """Up and down by the largest singular values (Eckart and Young, 1936); a vector as it is."""
    if change.dim() == 1:
        return half(change[:, None]), np.ones((1, 1), np.float16)
    if not change.isfinite().all():  # of which there are no singular values
        return half(change), np.eye(change.shape[1], dtype=np.float16)
    left, sizes, right = torch.linalg.svd(change, full_matrices=False)
    roots = sizes[:rank].sqrt()
    return half(left[:, :rank] * roots), half(roots[:, None] * right[:rank])
