"""Keys and values by a forward pass of transformers, to check stored ones and to do without."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kv_reading.errors import KvError
from kv_reading.kv import Kv


class ReferenceModel:
    """A causal model on the CPU, in float32. Blocks while it computes."""

    def __init__(self, model: Path) -> None:
        """Raises KvError where it cannot be loaded."""
        try:
            import torch
            import transformers
        except ImportError as error:
            raise KvError(f"this needs {error.name}: pip install 'kvswarm[kv]'") from error
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
