"""The last tokens alone: what breaks without the first ones."""

from dataclasses import dataclass

from torch import Tensor

from kv_policies.eviction import EvictionPolicy, HeldTokens, check_window


@dataclass(frozen=True)
class WindowAlone(EvictionPolicy):
    name = "window"
    summary = "a window of the last tokens, without the first ones"

    window_tokens: int = 132

    def __post_init__(self) -> None:
        check_window(self)

    def scores(self, held: HeldTokens) -> Tensor:
        return -held.age
