"""What the user chooses about a target, apart from which one it is, and what its model says."""

import ipaddress
import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from loadgen.errors import UsageError
from loadgen.scratch import expanded
from loadgen.targets.context_scheduler import ContextSchedulerSettings

LOOPBACK = "127.0.0.1"
CONFIG_JSON = "config.json"
ROUTERS: Mapping[str, str] = {
    "cache_aware": "vllm-router",
    "round_robin": "vllm-router",
    "random": "vllm-router",
    "power_of_two": "vllm-router",
    "consistent_hash": "vllm-router",
    "kv_aware": "vllm-router",
    "haproxy-hash": "haproxy",
    "haproxy-leastconn": "haproxy",
}
"""The program of each policy."""
ROUTED_BY_EVENTS = frozenset({"kv_aware"})
"""Policies that go by the KV blocks that engines tell to have stored and removed."""
ROUTED_BY_TOKENS = frozenset({"cache_aware"}) | ROUTED_BY_EVENTS
"""Policies that compare prompts by their token ids, and have engines tell these."""
USUAL_ROUTER = "cache_aware"
"""vLLM's own router's."""
MOST_REPLICAS = 64
"""More engines than that on one machine are a slip of the pen."""
LEAST_NODE_GB = 0.01
"""A node takes some megabytes of its memory for itself."""
KV_CODECS = ("raw", "lossless", "int8", "int4", "adaptive")
"""Those of `kv_tiers` that need no profile of a model; its packages may be missing here."""
PROFILED_CODEC = "cachegen"


def model_window_tokens(model: str) -> int | None:
    """`max_position_embeddings`, None where there is no such config to read."""
    window = model_config(model).get("max_position_embeddings")
    return window if isinstance(window, int) and window > 0 else None


def _is_writable_folder(path: Path) -> bool:
    return path.is_dir() and os.access(path, os.W_OK | os.X_OK)


def is_quantized(model: str) -> bool:
    """Such weights decide what may be computed with; most methods take no float32."""
    return "quantization_config" in model_config(model)


def model_config(model: str | Path) -> dict[str, Any]:
    """What config.json says, a folder or that file itself: that of the text where a model has
    several kinds of input. Empty where there is none to read."""
    path = expanded(model)
    file = path if path.suffix == ".json" else path / CONFIG_JSON
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
        return {**config, **(config.get("text_config") or {})}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


@dataclass(frozen=True, slots=True)
class TargetSettings:
    """`model` is a directory or a Hugging Face name; `kv_tokens` the usable size of the engine's
    own cache in tokens (None: the engine decides); `l1_gb` the memory behind it; in `l2_dir` a
    target with a tier on disk makes a folder (None: with temporary files); `l2_gb` and
    `kv_codec` are for KV on nodes behind a network, so much on each, and with the file of a
    profile after a colon where the codec needs one; `port` is the engine's (None: a free one);
    `args` go to the engine last; a service gets `stop_grace_s` between SIGTERM and SIGKILL;
    `context_scheduler` means something to targets with that scheduler only, `replicas` of the
    engine, and the policy of the `router` before them, to those with a router; with `is_exact`
    a CPU never computes in bfloat16 unless `args` say so. Raises UsageError for what cannot be.
    """

    model: str
    kv_tokens: int | None = None
    l1_gb: float = 1.0
    l2_dir: Path | None = None
    l2_gb: float = 1.0
    kv_codec: str = "lossless"
    host: str = LOOPBACK
    port: int | None = None
    args: tuple[str, ...] = ()
    served_model_name: str | None = None
    start_timeout_s: float = 600.0
    stop_grace_s: float = 8.0
    context_scheduler: ContextSchedulerSettings = field(default_factory=ContextSchedulerSettings)
    replicas: int | None = None
    router: str | None = None
    is_exact: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.l1_gb < math.inf:
            raise UsageError(f"--l1-gb {self.l1_gb:g} must be more than 0 and finite")
        if not LEAST_NODE_GB <= self.l2_gb < math.inf:
            raise UsageError(f"--l2-gb {self.l2_gb:g}: give {LEAST_NODE_GB:g} or more, and finite")
        if self.l2_dir is not None and not _is_writable_folder(self.l2_dir):
            raise UsageError(f"--l2-dir {self.l2_dir} is not a folder that can be written")
        if self.replicas is not None and not 0 < self.replicas <= MOST_REPLICAS:
            raise UsageError(f"--replicas {self.replicas} is not between 1 and {MOST_REPLICAS}")
        if self.kv_codec not in KV_CODECS and not self.kv_profile:
            raise UsageError(
                f"unknown --kv-codec {self.kv_codec!r}: choose one of {', '.join(KV_CODECS)}, or"
                f" {PROFILED_CODEC}:FILE with what `kvswarm kv codecs` wrote for the model"
            )
        if self.port is not None and not 0 < self.port < 65536:
            raise UsageError(f"--port {self.port} is not between 1 and 65535")
        if self.model.startswith((".", "/", "~")) and self.model_dir is None:
            raise UsageError(
                f"no model at {self.model}: it needs a config.json, make a demo model there with"
                f" `kvswarm model build {self.model}`"
            )

    @property
    def model_dir(self) -> Path | None:
        """The model's directory where it is local."""
        path = expanded(self.model)
        return path.resolve() if (path / CONFIG_JSON).is_file() else None

    @property
    def kv_profile(self) -> str:
        """The file of the codec's profile, empty where it has none."""
        codec, _, file = self.kv_codec.partition(":")
        return str(expanded(file).resolve()) if codec == PROFILED_CODEC and file else ""

    @property
    def name(self) -> str:
        """What requests call the model: as asked for, the directory's name, or the model's."""
        directory = self.model_dir
        return self.served_model_name or (directory.name if directory else self.model)

    @property
    def window_tokens(self) -> int | None:
        """The longest context the model was made for, where it is local."""
        return model_window_tokens(str(self.model_dir)) if self.model_dir else None

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine reaches the engine."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def own_host(self) -> str:
        """The host by which we ourselves reach the engine, ready for a URL."""
        if self.host in ("0.0.0.0", "::"):
            return LOOPBACK if self.host == "0.0.0.0" else "[::1]"
        return f"[{self.host}]" if ":" in self.host else self.host
