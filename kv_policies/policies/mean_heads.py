"""KV heads of a group replaced by their mean, without training.

Keys and values are linear in their projections, and rotary positions are the same rotation for each
head: the mean of heads is what the mean of the groups' projections would give.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from kv_policies.policies.full import FullLayer
from kv_policies.policy import KeysValues, KvLayer, KvPolicy, ModelShape, PolicyError, at_least


@dataclass(frozen=True)
class MeanHeads(KvPolicy):
    name = "mean-heads"
    summary = "the mean of the KV heads of each of so many groups, read in the prefill too"

    groups: int = 1

    def __post_init__(self) -> None:
        at_least(1, self, "groups")

    def check(self, shape: ModelShape) -> None:
        heads = shape.kv_heads
        if heads == 1:
            raise PolicyError(
                f"{self.label}: the model has one KV head, there is nothing to average"
            )
        if heads % self.groups or self.groups >= heads:
            fitting = [str(each) for each in range(1, heads) if heads % each == 0]
            raise PolicyError(f"{self.label}: {heads} KV heads give {', '.join(fitting)} groups")

    def layer(self, index: int, shape: ModelShape, earlier: list[KvLayer]) -> KvLayer:
        return _MeanLayer(self.groups)


class _MeanLayer(FullLayer):
    def __init__(self, groups: int) -> None:
        super().__init__()
        self._groups = groups

    def append(self, new: KeysValues) -> KeysValues:
        heads = new.keys.shape[1]
        means = KeysValues(*(self._mean(each) for each in new))
        held = super().append(means)
        return KeysValues(*(each.repeat_interleave(heads // self._groups, dim=1) for each in held))

    def _mean(self, states: Tensor) -> Tensor:
        return torch.unflatten(states, 1, (self._groups, -1)).mean(dim=2)
