"""More tokens for early layers, fewer for late ones, the same in total (the shape of PyramidKV: Cai
et al., arXiv:2406.02069, which chooses tokens by attention; here they are the first and last)."""

from dataclasses import dataclass

from torch import Tensor, inf

from kv_policies.eviction import EvictionPolicy, HeldTokens, check_window
from kv_policies.policy import ModelShape, PolicyError, at_least

STEEPNESS = 0.75
"""The first layer's window is longer than the mean by this share, the last one's shorter."""


@dataclass(frozen=True)
class LayerBudget(EvictionPolicy):
    name = "layer-budget"
    summary = "as sink-window with the same total, the window longer in early layers"

    sink_tokens: int = 4
    window_tokens: int = 128

    def __post_init__(self) -> None:
        at_least(0, self, "sink_tokens")
        check_window(self)

    def check(self, shape: ModelShape) -> None:
        layers = range(shape.layers)
        if min(self.budget_tokens(each, shape.layers) for each in layers) <= self.sink_tokens:
            raise PolicyError(
                f"{self.label}: no window is left in late layers of {shape.layers}: give more"
                " tokens"
            )

    def budget_tokens(self, layer: int, layers: int) -> int:
        return self.sink_tokens + self._until(layer + 1, layers) - self._until(layer, layers)

    def _until(self, layer: int, layers: int) -> int:
        """Window tokens of all layers below: rounded sums, so that the total is exact."""
        steps = max(layers - 1, 1)
        slope = sum(1 - 2 * each / steps for each in range(layer)) if layers > 1 else 0.0
        return round(self.window_tokens * (layer + STEEPNESS * slope))

    def scores(self, held: HeldTokens) -> Tensor:
        tokens = held.keys.shape[-2]
        return (-held.age).masked_fill(held.age >= tokens - self.sink_tokens, inf)
