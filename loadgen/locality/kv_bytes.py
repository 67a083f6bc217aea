"""How many bytes of cache a token takes, by a model's configuration."""

import json
from pathlib import Path
from typing import Any

DTYPE_BYTES = {"float32": 4, "float": 4, "bfloat16": 2, "float16": 2, "half": 2, "fp8": 1}


def kv_bytes_per_token(model: Path, kv_dtype: str = "auto") -> int | None:
    """Keys and values of all layers: 2 x layers x KV heads x head dimension x bytes of a number.

    `kv_dtype` is vLLM's `--kv-cache-dtype`. None where the folder has no such `config.json`, or
    one of an attention that keeps something else.
    """
    try:
        config = json.loads((model / "config.json").read_text(encoding="utf-8"))
        return _bytes(config, kv_dtype)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _bytes(config: dict[str, Any], kv_dtype: str) -> int | None:
    if "kv_lora_rank" in config:
        return None
    heads = config["num_attention_heads"]
    kv_heads = config.get("num_key_value_heads") or heads
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    own = str(config.get("dtype") or config.get("torch_dtype") or "bfloat16")
    dtype = own if kv_dtype == "auto" else kv_dtype.partition("_")[0]
    return int(2 * config["num_hidden_layers"] * kv_heads * head_dim * DTYPE_BYTES[dtype])
