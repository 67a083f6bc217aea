"""Two neighbouring layers share one direction of each token's states, each with its own length of
it (MiniCache: Liu et al., arXiv:2405.14366).

The shared direction is half way between the two, by spherical interpolation. Tokens whose
directions differ most are kept of both layers as they are.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil

import torch
from torch import Tensor
from torch.nn.functional import normalize

from kv_policies.coding import BlockLayer, Coded
from kv_policies.policies.full import FullLayer
from kv_policies.policy import KvLayer, KvPolicy, ModelShape, PolicyError, at_least

OUTLIERS = 0.05
"""The share of a block's tokens that are kept apart."""


@dataclass(frozen=True)
class MiniCache(KvPolicy):
    name = "minicache"
    summary = "from a layer on (the first is 0), each two layers merged; recent tokens as they are"
    is_exact_in_pass = True

    from_layer: int = 16
    recent_tokens: int = 64

    def __post_init__(self) -> None:
        at_least(0, self, "from_layer", "recent_tokens")

    def check(self, shape: ModelShape) -> None:
        if self.from_layer > shape.layers - 2:
            raise PolicyError(
                f"{self.label}: the model has {shape.layers} layers, and two are merged: give"
                f" {max(shape.layers - 2, 0)} or less"
            )

    def layer(self, index: int, shape: ModelShape, earlier: list[KvLayer]) -> KvLayer:
        after = index - self.from_layer
        if after < 0 or (index == shape.layers - 1 and after % 2 == 0):
            return FullLayer()
        if after % 2 == 0:
            return _LowerLayer(0, self.recent_tokens)
        lower = earlier[-1]
        assert isinstance(lower, _LowerLayer)
        return _UpperLayer(lower, self.recent_tokens)


class _LowerLayer(BlockLayer):
    """Its tokens wait until those of the layer above are there."""

    def encode(self, tokens: int) -> None:
        return


class _UpperLayer(BlockLayer):
    def __init__(self, lower: _LowerLayer, recent_tokens: int) -> None:
        super().__init__(0, recent_tokens)
        self._lower = lower

    def encode(self, tokens: int) -> None:
        pair = self._lower.drop(tokens), self.drop(tokens)
        keys = merged(*(each.keys for each in pair))
        values = merged(*(each.values for each in pair))
        for place, layer in enumerate((self._lower, self)):
            layer.blocks.append((keys[place], values[place]))


@dataclass(frozen=True, slots=True)
class MergedSide(Coded):
    """One layer's view: `direction` [batch, heads, tokens, head dim] and `places` [batch, outliers]
    are shared with the other; `lengths` [batch, heads, tokens, 1] and outliers' states are not."""

    direction: Tensor
    lengths: Tensor
    places: Tensor
    outliers: Tensor

    def decoded(self) -> Tensor:
        states = self.direction * self.lengths
        return states.scatter(-2, _expanded(self.places, states), self.outliers)

    def held(self) -> Iterable[Tensor]:
        return self.direction, self.lengths, self.places, self.outliers


def merged(lower: Tensor, upper: Tensor) -> tuple[MergedSide, MergedSide]:
    """Both sides of two layers' states, each [batch, heads, tokens, head dim]."""
    directions = [normalize(each.float(), dim=-1) for each in (lower, upper)]
    direction = normalize(directions[0] + directions[1], dim=-1).to(lower.dtype)
    cosines = (directions[0] * directions[1]).sum(-1).mean(1)
    apart = ceil(OUTLIERS * lower.shape[-2])
    places = cosines.topk(apart, dim=-1, largest=False).indices
    lower_side, upper_side = (
        MergedSide(
            direction,
            torch.linalg.vector_norm(each, dim=-1, keepdim=True),
            places,
            each.gather(-2, _expanded(places, each)),
        )
        for each in (lower, upper)
    )
    return lower_side, upper_side


def _expanded(places: Tensor, states: Tensor) -> Tensor:
    """[batch, heads, outliers, head dim], as gather and scatter want it."""
    batch, heads, _, dim = states.shape
    return places[:, None, :, None].expand(batch, heads, places.shape[-1], dim)
