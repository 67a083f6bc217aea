"""More tokens for early layers, fewer for late ones, the same in total (the shape of PyramidKV: Cai
et al., arXiv:2406.02069, which chooses tokens by attention; here they are the first and last)."""

from dataclasses import dataclass

from kv_policies.policies.sink_window import SinkWindow
from kv_policies.policy import ModelShape, PolicyError

STEEPNESS = 0.75
"""The first layer's window is longer than the mean by this share, the last one's shorter."""


@dataclass(frozen=True)
class LayerBudget(SinkWindow):
    name = "layer-budget"
    summary = "as sink-window with the same total, the window longer in early layers"

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
