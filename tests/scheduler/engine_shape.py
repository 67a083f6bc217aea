"""What a scheduler is built for, with adapters and a connector that has faults."""

from dataclasses import dataclass
from typing import Any

from vllm.config import KVTransferConfig, LoRAConfig

from loadgen.twin.engine import WINDOW_TOKENS, build_scheduler, model_config
from loadgen.twin.engine import EngineShape as PlainShape

__all__ = ["WINDOW_TOKENS", "EngineShape", "build_scheduler", "model_config", "settings"]


@dataclass(frozen=True, slots=True)
class EngineShape(PlainShape):
    """`pending_lookups` attaches a KV connector that leaves each request pending for so many scans;
    see `PendingConnector`."""

    max_loras: int = 0
    pending_lookups: int | None = None
    external_tokens: int = 0
    load_in_background: bool = False
    loads_fail: bool = False

    @property
    def lora(self) -> LoRAConfig | None:
        return LoRAConfig(max_loras=self.max_loras) if self.max_loras else None

    @property
    def transfer(self) -> KVTransferConfig | None:
        if self.pending_lookups is None:
            return None
        extra = {
            "pending_lookups": self.pending_lookups,
            "external_tokens": self.external_tokens,
            "load_in_background": self.load_in_background,
            "loads_fail": self.loads_fail,
        }
        return KVTransferConfig(
            kv_connector="PendingConnector",
            kv_connector_module_path="pending_connector",
            kv_role="kv_both",
            kv_connector_extra_config=extra,
            kv_load_failure_policy="recompute",
        )


def settings(**values: Any) -> tuple[tuple[str, Any], ...]:
    """Plugin settings in the hashable form EngineShape holds."""
    return tuple(sorted(values.items()))
