"""vLLM's own tier of files with a checksum in each: a secondary tier of vLLM 0.32.

    {"type": "CheckedFiles", "module_path": "kv_tiers.vllm_files", "root_dir": "/var/cache/kv"}

vLLM's `fs` takes a damaged file of the right size for good. Here it is a miss, and is computed
again. All else, threads, lookups and events, is `fs`, and so are the settings.
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from vllm.platforms import current_platform
from vllm.v1.kv_offload.base import OffloadingSpec, OffloadKey
from vllm.v1.kv_offload.tiering.base import TransferJob
from vllm.v1.kv_offload.tiering.fs.manager import FileSystemTierManager

from kv_tiers.checked_file import read_checked, write_checked
from kv_tiers.machine import instruction_set


class CheckedFiles(FileSystemTierManager):
    """Files below the name of the CPU's instruction set where the engine is on a CPU."""

    def __init__(
        self,
        offloading_spec: OffloadingSpec,
        primary_kv_view: memoryview,
        tier_type: str,
        root_dir: str,
        **settings: Any,
    ) -> None:
        """Raises OSError where nothing can be written."""
        folder = Path(root_dir)
        if current_platform.is_cpu():
            folder /= instruction_set()
        super().__init__(
            offloading_spec, primary_kv_view, tier_type, str(folder / "checked"), **settings
        )

    def submit_store(self, job_metadata: TransferJob) -> None:
        """Have chunks of the first tier written."""
        keys = self._begun(job_metadata)
        if self.events is not None:
            self._store_job_keys[job_metadata.job_id] = keys
        task = partial(self._store, keys, [*job_metadata.chunk_ids])
        self._pool.enqueue_store(job_metadata.job_id, 1, [task])

    def submit_load(self, job_metadata: TransferJob) -> None:
        """Have chunks read into the first tier, up to the first that is not whole."""
        keys = self._begun(job_metadata)
        self._load_job_keys[job_metadata.job_id] = keys
        task = partial(self._load, job_metadata.job_id, keys, [*job_metadata.chunk_ids])
        self._pool.enqueue_load(job_metadata.job_id, 1, [task])

    def _begun(self, job: TransferJob) -> list[OffloadKey]:
        keys = [*job.keys]
        self._job_block_counts[job.job_id] = len(keys)
        return keys

    def _store(self, keys: Sequence[OffloadKey], chunks: Sequence[int]) -> None:
        for key, chunk in zip(keys, chunks, strict=True):
            write_checked(self._path(key), self._chunk(chunk))

    def _load(self, job_id: int, keys: Sequence[OffloadKey], chunks: Sequence[int]) -> None:
        for number, (key, chunk) in enumerate(zip(keys, chunks, strict=True)):
            self._load_progress[job_id] = number
            if not read_checked(self._path(key), self._chunk(chunk)):
                raise OSError(f"{self._path(key)} is gone, or was not what had been written")
        del self._load_progress[job_id]

    def _path(self, key: OffloadKey) -> Path:
        return Path(self.file_mapper.get_file_name(key))

    def _chunk(self, number: int) -> memoryview:
        start = int(number) * self._block_size
        content: memoryview = self._primary_kv_view.cast("B")
        return content[start : start + self._block_size]
