"""The first tokens and the last ones (StreamingLLM: Xiao et al., arXiv:2309.17453)."""

from dataclasses import dataclass

from torch import Tensor, inf

from kv_policies.eviction import EvictionPolicy, HeldTokens, check_window
from kv_policies.policy import at_least


@dataclass(frozen=True)
class SinkWindow(EvictionPolicy):
    name = "sink-window"
    summary = "the first tokens and a window of the last"

    sink_tokens: int = 4
    window_tokens: int = 128

    def __post_init__(self) -> None:
        at_least(0, self, "sink_tokens")
        check_window(self)

    def scores(self, held: HeldTokens) -> Tensor:
        tokens = held.keys.shape[-2]
        return (-held.age).masked_fill(held.age >= tokens - self.sink_tokens, inf)
