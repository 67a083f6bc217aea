"""Keys and values on the leading singular vectors of a prompt's own.

The basis is that of the first block, the prompt; later tokens are written in it. The rank of each
head is the smallest whose squared singular values hold the share of energy.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from kv_policies.coding import Coded, CodedPolicy, Part
from kv_policies.policy import PolicyError, at_least

ROUNDING = 1e-9
"""Of all energy: less is what float32 makes of zero."""


@dataclass(frozen=True)
class LowRank(CodedPolicy):
    name = "low-rank"
    summary = "SVD of each head's keys and values, its rank by percent of energy"

    energy_percent: int = 95
    first_tokens: int = 4
    recent_tokens: int = 64

    def __post_init__(self) -> None:
        at_least(0, self, "first_tokens", "recent_tokens")
        at_least(1, self, "energy_percent")
        if self.energy_percent > 100:
            raise PolicyError(
                f"{self.family}: {self.energy_percent} percent of energy: give to 100"
            )

    def encode(self, states: Tensor, part: Part) -> Coded:
        if isinstance(part.first, Projected):
            return Projected.on(states, part.first.bases)
        return Projected.on(states, _bases(states, self.energy_percent / 100))


@dataclass(frozen=True, slots=True)
class Projected(Coded):
    """Of each text and head, coefficients of [tokens, rank] and a basis of [rank, head dim], which
    later blocks share; both in the model's type."""

    coefficients: tuple[Tensor, ...]
    bases: tuple[Tensor, ...]
    batch: int

    @classmethod
    def on(cls, states: Tensor, bases: tuple[Tensor, ...]) -> "Projected":
        """The nearest there are in the spans of the bases, which are orthonormal."""
        heads = states.flatten(0, 1).unbind()
        found = tuple(each @ basis.T for each, basis in zip(heads, bases, strict=True))
        return cls(found, bases, states.shape[0])

    def decoded(self) -> Tensor:
        heads = [each @ basis for each, basis in zip(self.coefficients, self.bases, strict=True)]
        return torch.unflatten(torch.stack(heads), 0, (self.batch, -1))

    def held(self) -> Iterable[Tensor]:
        return *self.coefficients, *self.bases


def _bases(states: Tensor, share: float) -> tuple[Tensor, ...]:
    """By the eigenvectors of each head's Gram matrix, which are the right singular vectors."""
    exact = states.flatten(0, 1).double()
    values, vectors = torch.linalg.eigh(exact.transpose(-1, -2) @ exact)
    energy = values.clamp_min(0).flip(-1).cumsum(-1)
    ranks = (energy < (share - ROUNDING) * energy[..., -1:]).sum(-1) + 1
    most = min(states.shape[-1], states.shape[-2])
    return tuple(
        each[:, -min(int(rank), most) :].flip(-1).T.to(states.dtype).contiguous()
        for each, rank in zip(vectors, ranks, strict=True)
    )
