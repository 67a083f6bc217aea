"""What the `config.json` of a local model says."""

import json
from pathlib import Path
from typing import Any


def model_window_tokens(model: str) -> int | None:
    """`max_position_embeddings`, None where there is no such config to read."""
    window = _config(model).get("max_position_embeddings")
    return window if isinstance(window, int) and window > 0 else None


def is_quantized(model: str) -> bool:
    """Such weights decide what may be computed with; most methods take no float32."""
    return "quantization_config" in _config(model)


def _config(model: str) -> dict[str, Any]:
    try:
        config = json.loads((Path(model).expanduser() / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return config if isinstance(config, dict) else {}
