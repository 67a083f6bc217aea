"""Keys and values as arrays, the dimensions they have in a model, and those of a forward pass."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from kv_reading import KvError
from rag_store.extras import install_command

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class KvShape:
    """Layers, KV heads and the dimension of a head."""

    layers: int
    heads: int
    head_dim: int

    @property
    def values_per_token(self) -> int:
        """Keys and values of all layers together."""
        return 2 * self.layers * self.heads * self.head_dim


@dataclass(frozen=True, slots=True)
class Kv:
    """Of one stretch of tokens: `keys` and `values`, each [layers, heads, tokens, head_dim]."""

    keys: Floats
    values: Floats

    @property
    def tokens(self) -> int:
        """How many tokens."""
        return int(self.keys.shape[2])

    def part(self, start: int, end: int | None = None) -> "Kv":
        """The tokens from `start` to before `end`."""
        return Kv(self.keys[:, :, start:end], self.values[:, :, start:end])


def joined(parts: list[Kv]) -> Kv:
    """Several stretches after each other; at least one."""
    return Kv(
        np.concatenate([part.keys for part in parts], axis=2),
        np.concatenate([part.values for part in parts], axis=2),
    )


def read_shape(model: Path) -> KvShape:
    """From the model's config.json. Raises KvError where it cannot be read or has no such shape."""
    config = _config(model / "config.json")
    config = config.get("text_config", config)
    try:
        attention_heads = int(config["num_attention_heads"])
        return KvShape(
            layers=int(config["num_hidden_layers"]),
            heads=int(config.get("num_key_value_heads") or attention_heads),
            head_dim=int(config.get("head_dim") or config["hidden_size"] // attention_heads),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise KvError(
            f"{model / 'config.json'} does not tell layers, heads and their dimension ({error}):"
            " give a decoder with plain attention"
        ) from error


def _config(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise KvError(
            f"cannot read {path}: name the folder of the model that was served"
        ) from error
    if not isinstance(found, dict):
        raise KvError(f"{path} is no JSON object: name the folder of the model that was served")
    return found


class ReferenceModel:
    """A causal model on the CPU, in float32. Blocks while it computes."""

    def __init__(self, model: Path) -> None:
        """Raises KvError where it cannot be loaded."""
        try:
            import torch
            import transformers
        except ImportError as error:
            raise KvError(f"this needs {error.name}: {install_command('kv')}") from error
        transformers.utils.logging.disable_progress_bar()
        transformers.utils.logging.set_verbosity_error()
        try:
            self._model: Any = transformers.AutoModelForCausalLM.from_pretrained(
                str(model), dtype=torch.float32
            ).eval()
        except Exception as error:  # each file format has errors of its own
            reason = str(error).strip().split("\n")[0]
            raise KvError(f"cannot load the model {model}: {reason}") from error

    def kv(self, token_ids: Sequence[int]) -> Kv:
        """Of all tokens of one prompt, at least one."""
        import torch

        with torch.inference_mode():
            cache = self._model.base_model(torch.tensor([list(token_ids)]), use_cache=True)
        layers = cache.past_key_values.layers
        keys, values = (
            torch.stack([getattr(layer, name)[0] for layer in layers]).float().numpy()
            for name in ("keys", "values")
        )
        return Kv(keys, values)
