"""Tokens that got most attention so far (H2O: Zhang et al., arXiv:2306.14048).

Sums run over all queries since a token came, so that older tokens had more queries to be seen by.
The weights cost what a fused kernel saves: attention is computed by hand.
"""

from dataclasses import dataclass

from torch import Tensor, inf

from kv_policies.eviction import EvictionPolicy, HeldTokens, check_window
from kv_policies.policy import at_least


@dataclass(frozen=True)
class HeavyHitters(EvictionPolicy):
    name = "heavy-hitters"
    summary = "tokens with most accumulated attention, and a window of the last"
    sees_attention = True

    heavy_tokens: int = 100
    window_tokens: int = 32

    def __post_init__(self) -> None:
        at_least(0, self, "heavy_tokens")
        check_window(self)

    def scores(self, held: HeldTokens) -> Tensor:
        assert held.attention is not None
        return held.attention.masked_fill(held.age < self.window_tokens, inf)
