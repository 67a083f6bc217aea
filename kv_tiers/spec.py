"""vLLM's offloading specs with the worker of `kv_tiers.worker` where the engine is on the CPU.

Named in `--kv-transfer-config` by `spec_name` and `spec_module_path`. On other devices they are
vLLM's own.
"""

import math
from pathlib import Path
from typing import Any

from vllm.platforms import current_platform
from vllm.v1.kv_offload.base import CanonicalKVCaches, OffloadingManager, OffloadingWorker
from vllm.v1.kv_offload.config import OffloadingConfig
from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion
from vllm.v1.kv_offload.cpu.spec import CPUOffloadingSpec
from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec

from kv_tiers.machine import instruction_set
from kv_tiers.worker import HostCopyWorker


class _HostWorkerSpec(CPUOffloadingSpec):
    """What makes its one worker by `_made_worker` where the engine is on the CPU."""

    def __init__(self, config: OffloadingConfig) -> None:
        super().__init__(config)
        self._host_worker: OffloadingWorker | None = None
        _require_possible(self, config)

    def get_worker(self, kv_caches: CanonicalKVCaches) -> OffloadingWorker:
        """The one worker of the engine."""
        if not current_platform.is_cpu():
            return super().get_worker(kv_caches)
        if self._host_worker is None:
            self._host_worker = self._made_worker(kv_caches)
        return self._host_worker

    def _made_worker(self, kv_caches: CanonicalKVCaches) -> OffloadingWorker:
        raise NotImplementedError


class HostOffloadingSpec(_HostWorkerSpec):
    """Host memory behind the engine's cache."""

    def _made_worker(self, kv_caches: CanonicalKVCaches) -> OffloadingWorker:
        return HostCopyWorker(
            kv_caches,
            self.blocks_per_chunk,
            self.num_chunks,
            load_bytes_per_s=_load_bytes_per_s(self),
        )


class HostTieringSpec(_HostWorkerSpec, TieringOffloadingSpec):
    """Host memory, and further tiers such as a folder behind it.

    A folder tier (`fs`) keeps its files below the name of the CPU's instruction set: the order of
    the bytes within a block depends on it, and on nothing else that vLLM's path tells apart.
    """

    secondary_tier_configs: list[dict[str, Any]]

    def __init__(self, config: OffloadingConfig) -> None:
        super().__init__(config)
        if current_platform.is_cpu():
            self.secondary_tier_configs = [_by_cpu(each) for each in self.secondary_tier_configs]

    def _made_worker(self, kv_caches: CanonicalKVCaches) -> OffloadingWorker:
        """A worker on the region that the scheduler's tiers read and write."""
        region = SharedOffloadRegion(
            engine_id=self.config.engine_id,
            num_chunks=self.num_chunks,
            rank=0 if self.replicated_layout else self.config.parallel.rank,
            kv_bytes_per_chunk=self.kv_bytes_per_chunk,
            cpu_page_size=self.cpu_page_size_per_worker,
        )
        try:
            worker = HostCopyWorker(
                kv_caches, self.blocks_per_chunk, self.num_chunks, region, _load_bytes_per_s(self)
            )
        except Exception:
            region.cleanup()
            raise
        if self.config.parallel.world_size == 1:
            region._creator = False  # `get_manager` removes the name
        return worker

    def get_manager(self) -> OffloadingManager:
        """vLLM's manager; the region's name goes once the only worker and it have it open.

        The memory is freed with them then, also where the engine is killed.
        """
        path = Path(f"/dev/shm/vllm_offload_{self.config.engine_id}.mmap")
        both = self._manager is None and self.config.parallel.world_size == 1 and path.exists()
        try:
            return super().get_manager()
        finally:
            if both and current_platform.is_cpu():
                path.unlink(missing_ok=True)


def _by_cpu(tier: dict[str, Any]) -> dict[str, Any]:
    """A copy: the scheduler's and the worker's spec are made from the same configuration."""
    if tier.get("type") != "fs" or "root_dir" not in tier:
        return tier
    return {**tier, "root_dir": str(Path(tier["root_dir"]) / instruction_set())}


def _load_bytes_per_s(spec: CPUOffloadingSpec) -> float:
    """`load_bytes_per_s` of the configuration. Raises ValueError."""
    given = spec.extra_config.get("load_bytes_per_s", math.inf)
    if not isinstance(given, int | float) or not given > 0:
        raise ValueError(f"load_bytes_per_s {given!r} is no bandwidth: give a number above 0")
    return float(given)


def _require_possible(spec: CPUOffloadingSpec, config: OffloadingConfig) -> None:
    """Raise ValueError for what would fail later, or not at all and be wrong."""
    if not current_platform.is_cpu():
        return
    _load_bytes_per_s(spec)
    if config.canonical_layout:
        raise ValueError("canonical_layout is not possible on the CPU: leave it out")
    if spec.kv_bytes_per_chunk and spec.num_chunks < 1:
        raise ValueError(
            f"cpu_bytes_to_use {spec.extra_config['cpu_bytes_to_use']} holds no chunk of"
            f" {spec.kv_bytes_per_chunk} bytes: give more"
        )
