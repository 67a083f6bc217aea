"""Random weights of a Qwen2 model, the same for the same seed."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from loadgen.errors import UsageError


def write_weights(path: Path, config: dict[str, Any], silent: list[int], seed: int) -> None:
    """Write `model.safetensors` in bfloat16 for a Qwen2 `config`.

    The output rows of `silent` token ids (special tokens, broken bytes) are zero, so that greedy
    decoding never picks them and each generated token carries text. Raises UsageError when torch
    or safetensors is missing.
    """
    try:
        import torch
        from safetensors.torch import save_file
    except ImportError as error:
        raise UsageError(
            f"the demo model needs {error.name}: pip install 'kvswarm[engine-cpu]'"
        ) from error
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, shape, std in _tensors(config):
        values = torch.randn(shape, generator=generator) * std if std else torch.zeros(shape)
        tensors[name] = (values + 1 if name.endswith("norm.weight") else values).bfloat16()
    tensors["lm_head.weight"][silent] = 0
    save_file(tensors, str(path), metadata={"format": "pt"})
    path.chmod(0o644)


def _tensors(config: dict[str, Any]) -> Iterator[tuple[str, tuple[int, ...], float]]:
    """Name, shape and standard deviation of each tensor, in the order they are drawn."""
    hidden, vocabulary = config["hidden_size"], config["vocab_size"]
    yield "model.embed_tokens.weight", (vocabulary, hidden), 1.0
    for layer in range(config["num_hidden_layers"]):
        for name, shape, std in _layer(config):
            yield f"model.layers.{layer}.{name}", shape, std
    yield "model.norm.weight", (hidden,), 0.0
    yield "lm_head.weight", (vocabulary, hidden), hidden**-0.5


def _layer(config: dict[str, Any]) -> Iterator[tuple[str, tuple[int, ...], float]]:
    """Projections keep their input's scale; queries and keys are larger, so that attention picks
    single tokens and the reply depends on the context instead of on its average."""
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    kv = hidden // config["num_attention_heads"] * config["num_key_value_heads"]
    scale = hidden**-0.5
    yield "input_layernorm.weight", (hidden,), 0.0
    yield "post_attention_layernorm.weight", (hidden,), 0.0
    for name, rows, std in (("q", hidden, 2 * scale), ("k", kv, 2 * scale), ("v", kv, scale)):
        yield f"self_attn.{name}_proj.weight", (rows, hidden), std
        yield f"self_attn.{name}_proj.bias", (rows,), 0.0
    yield "self_attn.o_proj.weight", (hidden, hidden), scale
    yield "mlp.gate_proj.weight", (inner, hidden), scale
    yield "mlp.up_proj.weight", (inner, hidden), scale
    yield "mlp.down_proj.weight", (hidden, inner), inner**-0.5
