"""What an engine's cache did in a finished run, beside what is predicted for that run."""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loadgen.errors import UsageError
from loadgen.locality.curve import predict
from loadgen.locality.trace_sources import recorded_run, trace_of_run, unfinished
from loadgen.runs.recorded import PREFIX_CACHING, argument, is_on
from loadgen.targets.settings import model_config

OTHER_ATTENTION = (
    *("full_attention_interval", "hybrid_override_pattern", "layers_block_type"),
    *("mamba_d_state", "state_size", "linear_attn_config", "attn_layer_period"),
)
"""What config.json says of layers that keep something else than each token."""
WINDOWS = ("sliding_window", "attention_chunk_size")
"""Tokens before one that some layers attend to."""
AUTO = "auto"
DTYPE_BYTES = {"float32": 4, "float": 4, "bfloat16": 2, "float16": 2, "half": 2, "fp8": 1}


@dataclass(frozen=True, slots=True)
class MeasuredRun:
    """A run with a cache of `tokens`. Both rates are of the engine's own cache, 0 to 1; the
    predicted one is that of the requests which this very run sent."""

    name: str
    tokens: int
    hit_rate: float
    predicted: float
    requests: int
    in_flight: int

    @property
    def error_points(self) -> float:
        """Predicted less measured, in percentage points."""
        return 100 * (self.predicted - self.hit_rate)


def measured_run(run: Path, tokenizer: str | None = None) -> MeasuredRun:
    """The run's point and the error of its prediction. Raises UsageError where the size of the
    cache or the hit rate is not known."""
    recorded = recorded_run(run)
    tokens = recorded.target.get("usable_tokens")
    hit_rate = (recorded.summary.get("server") or {}).get("hit_rate")
    if tokens is None:
        raise UsageError(
            f"{run} does not tell its cache size: measure with `kvswarm run --target … --kv-tokens`"
        )
    if not is_on(recorded.engine_argv, PREFIX_CACHING):
        raise UsageError(f"{run} was measured on an engine without a prefix cache: leave it out")
    if hit_rate is None:
        raise UsageError(f"{run} has no hit rate of the engine in its summary.json: run it again")
    for fault in unfinished(recorded):
        raise UsageError(f"{run}: {fault}: give a whole run")
    for cause, begun_s in (
        ("a warm-up", (recorded.summary.get("warmup") or {}).get("given")),
        ("a reset of the statistics", recorded.summary.get("stats_reset_s")),
    ):
        if begun_s:
            raise UsageError(f"{run} has {cause}, which its hit rate leaves out: run it without")
    trace = trace_of_run(run, tokenizer)
    predicted = predict(trace, [int(tokens)]).points[0].hit_rate
    return MeasuredRun(
        name=str(run),
        tokens=int(tokens),
        hit_rate=float(hit_rate),
        predicted=predicted,
        requests=len(trace.chains),
        in_flight=trace.in_flight,
    )


def run_bytes_per_token(run: Path) -> int | None:
    """Bytes of cache for each token in this run's engine; None where its model is not known."""
    argv = recorded_run(run).engine_argv
    model = argument(argv, "--model")
    return None if model is None else argv_bytes_per_token(argv, Path(model))


def argv_bytes_per_token(argv: Sequence[str], model: Path) -> int | None:
    """The same of an engine that is started so, with this model."""
    given = (argument(argv, name) or AUTO for name in ("--kv-cache-dtype", "--dtype"))
    return kv_bytes_per_token(model, *given)


def kv_bytes_per_token(model: Path, kv_dtype: str = AUTO, dtype: str = AUTO) -> int | None:
    """Keys and values of all layers: 2 x layers x KV heads x head dimension x bytes of a number.

    They are vLLM's `--kv-cache-dtype` and `--dtype`; `model` a folder or a `config.json`. None
    where there is none, or one of an attention or a type that keeps something else.
    """
    with suppress(ValueError, KeyError, TypeError, AttributeError):
        return _bytes(model_config(model), kv_dtype, dtype)
    return None


def other_attention(model: Path, longest_tokens: int | None = None) -> str | None:
    """What the model's config.json says of layers that do not attend to all of so many tokens, by
    default of as many as it takes; None where it says nothing of them, or is not there."""
    with suppress(ValueError, TypeError, AttributeError):
        return next(_other_attention(model_config(model), longest_tokens), None)
    return None


def _other_attention(config: Mapping[str, Any], longest_tokens: int | None) -> Iterator[str]:
    yield from (name for name in OTHER_ATTENTION if config.get(name))
    for each in sorted({*(config.get("layer_types") or ())} - {"full_attention", "attention"}):
        yield f"layer_types {each}"
    longest = longest_tokens or config.get("max_position_embeddings") or math.inf
    for name in WINDOWS if config.get("use_sliding_window", True) else WINDOWS[1:]:
        if (config.get(name) or math.inf) < longest:
            yield f"{name} {config[name]}"


def _bytes(config: Mapping[str, Any], kv_dtype: str, dtype: str) -> int | None:
    if config.get("kv_lora_rank") or any(_other_attention(config, None)):
        return None
    kv_heads, head_dim, own = kv_form(config)
    # vLLM serves a model of float32 in a type of 16 bits, unless it is told otherwise.
    usual = "bfloat16" if own in ("float32", "float") else own
    given = (kv_dtype, _quantized_kv(config), dtype)
    named = next((each for each in given if each != AUTO), usual)
    each_bytes = DTYPE_BYTES[named.partition("_")[0]]
    return int(2 * config["num_hidden_layers"] * kv_heads * head_dim * each_bytes)


def _quantized_kv(config: Mapping[str, Any]) -> str:
    """The type of the KV that a checkpoint of quantized weights asks for."""
    told = config.get("quantization_config") or {}
    parts = (told, told.get("quantization") or {})
    names = ("kv_cache_scheme", "kv_cache_quant_algo")
    scheme = next((part[name] for name in names for part in parts if part.get(name)), AUTO)
    if isinstance(scheme, Mapping):
        return f"fp{scheme['num_bits']}"
    return str(scheme).lower()


def kv_form(config: Mapping[str, Any]) -> tuple[int, int, str]:
    """KV heads, their dimension and the type of numbers by a config.json. Raises KeyError."""
    heads = config["num_attention_heads"]
    own = config.get("dtype") or config.get("torch_dtype") or "bfloat16"
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    return config.get("num_key_value_heads") or heads, head_dim, str(own)
