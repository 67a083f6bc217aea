"""Keys of low norm (Devoto et al., arXiv:2406.11430: they are the ones that get attention)."""

from dataclasses import dataclass

from torch import Tensor, inf, linalg

from kv_policies.eviction import EvictionPolicy, HeldTokens, check_window
from kv_policies.policy import at_least


@dataclass(frozen=True)
class L2Norm(EvictionPolicy):
    name = "l2-norm"
    summary = "tokens whose keys have the lowest L2 norm, and a window of the last"

    low_tokens: int = 100
    window_tokens: int = 32

    def __post_init__(self) -> None:
        at_least(0, self, "low_tokens")
        check_window(self)

    def scores(self, held: HeldTokens) -> Tensor:
        norms: Tensor = linalg.vector_norm(held.keys.float(), dim=-1)
        return (-norms).masked_fill(held.age < self.window_tokens, inf)
