"""Presses of NVIDIA's kvpress (0.5), which drop tokens once, after the prompt's first pass."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from kv_policies.policy import KeysValues, KvLayer, KvPolicy, ModelShape, PolicyError

PRESSES = (
    *("ExpectedAttentionPress", "KeyDiffPress", "KnormPress"),
    *("SnapKVPress", "StreamingLLMPress", "TOVAPress"),
)
"""Those that drop as many tokens in each head, and need no training."""
WHOLE_TOKENS = 64
"""Up to so many a prompt stays whole: SnapKV has a window of this size."""


@dataclass(frozen=True)
class Pressed(KvPolicy):
    summary = "of kvpress: so many percent of the prompt stay"
    needs = "kvpress"
    needs_whole_prompt = True

    kept_percent: int = 25
    press: str = field(default=PRESSES[0], kw_only=True)

    def __post_init__(self) -> None:
        if not 1 <= self.kept_percent <= 100:
            raise PolicyError(f"{self.press}: {self.kept_percent} kept percent: give 1 to 100")

    @classmethod
    def variants(cls) -> Mapping[str, Mapping[str, Any]]:
        return {press: {"press": press} for press in PRESSES}

    @property
    def family(self) -> str:
        return self.press

    def layer(self, index: int, shape: ModelShape, earlier: list[KvLayer]) -> KvLayer:
        return _PressedLayer()

    @contextmanager
    def first_pass(self, model: PreTrainedModel, tokens: int) -> Iterator[Mapping[str, Any]]:
        """kvpress takes a pass for a prompt by its positions, which transformers tells no more."""
        if tokens <= WHOLE_TOKENS:
            yield {}
            return
        try:
            import kvpress
        except ImportError as error:
            raise PolicyError(f"kvpress lacks {error.name}: pip install {error.name}") from error
        press = getattr(kvpress, self.press)(compression_ratio=1 - self.kept_percent / 100)
        with press(model):
            yield {"cache_position": torch.arange(tokens, device=model.device)}


class _PressedLayer(KvLayer):
    """`keys` and `values`, which a press sets."""

    keys: Tensor
    values: Tensor

    def append(self, new: KeysValues) -> KeysValues:
        if self.seen_tokens:
            new = KeysValues(self.keys, self.values).then(new)
        self.keys, self.values = new
        return new

    def held(self) -> Iterable[Tensor]:
        return (self.keys, self.values) if self.seen_tokens else ()

    @property
    def held_tokens(self) -> int:
        return int(self.keys.shape[-2]) if self.seen_tokens else 0
