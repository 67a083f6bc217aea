"""What a scheduler is built for, and the building: vLLM's own classes, no model, no port."""

import atexit
import json
import shutil
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from vllm.config import (
    CacheConfig,
    KVTransferConfig,
    LoRAConfig,
    ModelConfig,
    SchedulerConfig,
    VllmConfig,
)
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.structured_output import StructuredOutputManager

WINDOW_TOKENS = 12288
MODEL = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "hidden_size": 512,
    "intermediate_size": 1408,
    "num_hidden_layers": 1,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "vocab_size": 32768,
    "max_position_embeddings": WINDOW_TOKENS,
    "torch_dtype": "bfloat16",
}


@dataclass(frozen=True, slots=True)
class EngineShape:
    """The sizes of one engine; the defaults are those of vLLM's own CPU server.

    `plugin` holds the settings of the context scheduler, None gives vLLM's own class.
    `pending_lookups` attaches a KV connector that leaves each request pending for so many scans;
    see `PendingConnector`.
    """

    usable_blocks: int = 80
    block_size: int = 128
    max_num_seqs: int = 128
    max_num_batched_tokens: int = 2048
    async_scheduling: bool = False
    vllm_policy: str = "fcfs"
    max_loras: int = 0
    pending_lookups: int | None = None
    external_tokens: int = 0
    load_in_background: bool = False
    loads_fail: bool = False
    plugin: tuple[tuple[str, Any], ...] | None = None


def settings(**values: Any) -> tuple[tuple[str, Any], ...]:
    """Plugin settings in the hashable form EngineShape holds."""
    return tuple(sorted(values.items()))


@cache
def model_config() -> ModelConfig:
    directory = Path(tempfile.mkdtemp(prefix="kvswarm-shape-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    (directory / "config.json").write_text(json.dumps(MODEL))
    return ModelConfig(
        model=str(directory),
        skip_tokenizer_init=True,
        dtype="bfloat16",
        max_model_len=WINDOW_TOKENS,
        enforce_eager=True,
    )


@cache
def _vllm_config(shape: EngineShape) -> VllmConfig:
    scheduler = SchedulerConfig(
        max_model_len=WINDOW_TOKENS,
        is_encoder_decoder=False,
        max_num_seqs=shape.max_num_seqs,
        max_num_batched_tokens=shape.max_num_batched_tokens,
        async_scheduling=shape.async_scheduling,
        policy=shape.vllm_policy,
        disable_hybrid_kv_cache_manager=shape.pending_lookups is not None,
    )
    cache_config = CacheConfig(block_size=shape.block_size, enable_prefix_caching=True)
    config = VllmConfig(
        model_config=model_config(),
        scheduler_config=scheduler,
        cache_config=cache_config,
        lora_config=LoRAConfig(max_loras=shape.max_loras) if shape.max_loras else None,
        kv_transfer_config=_transfer(shape),
        additional_config=_additional(shape),
    )
    config.cache_config.num_gpu_blocks = shape.usable_blocks + 1
    config.scheduler_config.async_scheduling = shape.async_scheduling
    return config


def _transfer(shape: EngineShape) -> KVTransferConfig | None:
    if shape.pending_lookups is None:
        return None
    extra = {
        "pending_lookups": shape.pending_lookups,
        "external_tokens": shape.external_tokens,
        "load_in_background": shape.load_in_background,
        "loads_fail": shape.loads_fail,
    }
    return KVTransferConfig(
        kv_connector="PendingConnector",
        kv_connector_module_path="pending_connector",
        kv_role="kv_both",
        kv_connector_extra_config=extra,
        kv_load_failure_policy="recompute",
    )


def _additional(shape: EngineShape) -> dict[str, Any]:
    return {} if shape.plugin is None else {"context_scheduler": dict(shape.plugin)}


def build_scheduler(shape: EngineShape) -> Scheduler:
    """A scheduler as EngineCore builds it; its KV cache has one block more than is usable."""
    config = _vllm_config(shape)
    spec = FullAttentionSpec(
        block_size=shape.block_size, num_kv_heads=2, head_size=64, dtype=torch.bfloat16
    )
    group = KVCacheGroupSpec(["layer"], spec)
    return _scheduler_class(shape)(
        vllm_config=config,
        kv_cache_config=KVCacheConfig(
            num_blocks=shape.usable_blocks + 1, kv_cache_tensors=[], kv_cache_groups=[group]
        ),
        structured_output_manager=_output_manager(config),
        block_size=shape.block_size,
        hash_block_size=shape.block_size,
        include_finished_set=False,
        log_stats=True,
    )


def _scheduler_class(shape: EngineShape) -> Any:
    if shape.plugin is not None:
        from scheduler_plugin import ContextScheduler

        return ContextScheduler
    return AsyncScheduler if shape.async_scheduling else Scheduler


def _output_manager(config: VllmConfig) -> StructuredOutputManager:
    return StructuredOutputManager(config)
