"""vLLM's own tier of files with a checksum beside each: a secondary tier of vLLM 0.32.

    {"type": "CheckedFiles", "module_path": "kv_tiers.vllm_files", "root_dir": "/var/cache/kv"}

vLLM's `fs` takes a damaged file of the right size for good. Here it is a miss, and is computed
again. Files, threads, lookups, events and settings are those of `fs`. A checksum is written before
its file. Several engines on one folder may still leave a file without one: it is a miss, too.
"""

from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from vllm.platforms import current_platform
from vllm.v1.kv_offload.base import OffloadingSpec, OffloadKey
from vllm.v1.kv_offload.tiering.base import TransferJob
from vllm.v1.kv_offload.tiering.fs.io import batch_load_block, batch_store_block
from vllm.v1.kv_offload.tiering.fs.manager import FileSystemTierManager

from kv_tiers.checked_file import checksum, write_whole
from kv_tiers.machine import instruction_set


class CheckedFiles(FileSystemTierManager):
    """Files below what the meaning of their bytes depends on: the CPU's instruction set, or the
    layout of a GPU's cache where the engine tells it."""

    def __init__(
        self,
        offloading_spec: OffloadingSpec,
        primary_kv_view: memoryview,
        tier_type: str,
        root_dir: str,
        **settings: Any,
    ) -> None:
        """Raises OSError where nothing can be written."""
        layout = offloading_spec.config.kv_cache_layout or ""
        machine = instruction_set() if current_platform.is_cpu() else layout
        folder = str(Path(root_dir) / machine / "checked")
        self._root = Path(root_dir)
        super().__init__(offloading_spec, primary_kv_view, tier_type, folder, **settings)

    def submit_store(self, job_metadata: TransferJob) -> None:
        """Have chunks of the first tier written."""
        keys = self._begun(job_metadata)
        if self.events is not None:
            self._store_job_keys[job_metadata.job_id] = keys
        task = partial(self._store, keys, [*map(int, job_metadata.chunk_ids)])
        self._pool.enqueue_store(job_metadata.job_id, 1, [task])

    def submit_load(self, job_metadata: TransferJob) -> None:
        """Have chunks read into the first tier, up to the first that is not whole."""
        keys = self._begun(job_metadata)
        self._load_job_keys[job_metadata.job_id] = keys
        chunks = [*map(int, job_metadata.chunk_ids)]
        task = partial(self._load, job_metadata.job_id, keys, chunks)
        self._pool.enqueue_load(job_metadata.job_id, 1, [task])

    def _begun(self, job: TransferJob) -> list[OffloadKey]:
        keys = [*job.keys]
        self._job_block_counts[job.job_id] = len(keys)
        return keys

    def _store(self, keys: Sequence[OffloadKey], chunks: Sequence[int]) -> None:
        paths = [*map(self._path, keys)]
        try:
            for path, chunk in zip(paths, chunks, strict=True):
                if not path.exists():
                    write_whole(_sum_path(path), self._sum(path, chunk))
            batch_store_block(*self._transfer(paths, chunks))
        except OSError:
            for path in paths:
                with suppress(OSError):
                    if not path.exists():
                        _sum_path(path).unlink()
            raise

    def _load(self, job_id: int, keys: Sequence[OffloadKey], chunks: Sequence[int]) -> None:
        paths, wrong = [*map(self._path, keys)], None
        whole = len(paths)
        try:
            batch_load_block(*self._transfer(paths, chunks))
        except OSError as error:
            whole, wrong = getattr(error, "num_succeeded", 0), error
        for number, (path, chunk) in enumerate(zip(paths[:whole], chunks, strict=False)):
            if not self._is_whole(path, chunk):
                whole, wrong = number, OSError(f"{path} is not what was written")
                break
        if wrong is not None:
            self._load_progress[job_id] = whole
            try:
                raise wrong
            finally:
                del wrong  # or it and this frame keep each other, and views of the memory

    def _transfer(
        self, paths: Sequence[Path], chunks: Sequence[int]
    ) -> tuple[list[str], memoryview, list[int], int, bool]:
        """What vLLM's functions take."""
        offsets = [chunk * self._block_size for chunk in chunks]
        named = [*map(str, paths)]
        return named, self._primary_kv_view, offsets, self._block_size, self._use_o_direct

    def _is_whole(self, path: Path, chunk: int) -> bool:
        """Whether what was read of a file is what was written; one that is not is removed, but not
        one whose checksum cannot be read."""
        try:
            told = _sum_path(path).read_bytes()
        except FileNotFoundError:
            told = b""
        except OSError:
            return False
        if told == self._sum(path, chunk):
            return True
        for each in (path, _sum_path(path)):
            with suppress(OSError):
                each.unlink()
        return False

    def _path(self, key: OffloadKey) -> Path:
        return Path(self.file_mapper.get_file_name(key))

    def _sum(self, path: Path, chunk: int) -> bytes:
        """Of a row of the first tier, as the content of this file below the root folder."""
        start = chunk * self._block_size
        content: memoryview = self._primary_kv_view.cast("B")
        name = path.relative_to(self._root).as_posix()
        return checksum(name, content[start : start + self._block_size])


def _sum_path(path: Path) -> Path:
    return path.with_suffix(".sum")
