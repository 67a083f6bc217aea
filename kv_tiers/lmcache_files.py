"""LMCache's own tier of files with a checksum in each: an adapter for `lmcache server` 0.5.6.

    --l2-adapter '{"type": "plugin", "module_path": "kv_tiers.lmcache_files",
      "class_name": "CheckedFilesAdapter", "config_class_name": "FSL2AdapterConfig",
      "adapter_params": {"base_path": "/var/cache/kv"}}'

LMCache's `fs` takes a damaged file of the right size for good, and one of another dtype. Here it is
a miss, and is computed again. Files lie below the CPU's instruction set, on which the order of
their bytes depends. Lookups and deletions are those of `fs`.
"""

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from pathlib import Path
from typing import Any

from lmcache.lmcache_native import Bitmap
from lmcache.v1.distributed.api import ObjectKey
from lmcache.v1.distributed.internal_api import L2StoreResult
from lmcache.v1.distributed.l2_adapters.fs_l2_adapter import FSL2Adapter, FSL2AdapterConfig
from lmcache.v1.memory_management import MemoryObj

from kv_tiers.checked_file import SUM_BYTES, read_checked, write_checked
from kv_tiers.machine import instruction_set

__all__ = ["CheckedFilesAdapter", "FSL2AdapterConfig"]
_LOG = logging.getLogger(__name__)


class CheckedFilesAdapter(FSL2Adapter):
    """Of the settings of `fs` it heeds `base_path`."""

    def __init__(self, config: FSL2AdapterConfig, l1_memory_desc: object = None) -> None:
        """Raises OSError where its folder cannot be made."""
        below = copy(config)
        below.base_path = str(Path(config.base_path) / instruction_set())
        self._workers = ThreadPoolExecutor(thread_name_prefix="kv-files")
        super().__init__(below)

    def close(self) -> None:
        """From then on no thread uses LMCache's memory."""
        super().close()
        self._workers.shutdown(cancel_futures=True)

    async def _execute_store(
        self, keys: Sequence[ObjectKey], objects: Sequence[MemoryObj], task_id: int
    ) -> None:
        failed, sizes = 0, dict[ObjectKey, int]()
        for key, each in zip(keys, objects, strict=True):
            try:
                if await self._in_thread(write_checked, key, each):
                    sizes[key] = len(_bytes(each)) + SUM_BYTES
            except Exception:
                failed += 1
                _LOG.exception("a chunk was not written")
        if sizes:
            self._notify_keys_stored([*sizes], [*sizes.values()])
        with self._lock:
            self._completed_store_tasks[task_id] = L2StoreResult(not failed, sum(sizes.values()))
        self._store_efd.notify()

    async def _execute_load(
        self, keys: Sequence[ObjectKey], objects: Sequence[MemoryObj], task_id: int
    ) -> None:
        bits, loaded = Bitmap(len(keys)), list[ObjectKey]()
        for at, (key, each) in enumerate(zip(keys, objects, strict=True)):
            if await self._is_read(key, each):
                bits.set(at)
                loaded.append(key)
        if loaded:
            self._notify_keys_accessed(loaded)
        with self._lock:
            self._completed_load_tasks[task_id] = bits
        self._load_efd.notify()

    async def _is_read(self, key: ObjectKey, into: MemoryObj) -> bool:
        try:
            is_whole = await self._in_thread(read_checked, key, into)
        except Exception:
            _LOG.exception("a chunk was not read")
            return False
        if is_whole is False:
            _LOG.warning("a chunk, damaged or of another dtype, was removed: it is computed again")
            self._notify_keys_deleted([key], [len(_bytes(into)) + SUM_BYTES])
        return bool(is_whole)

    async def _in_thread(
        self, work: Callable[[Path, memoryview, str], bool | None], key: ObjectKey, each: MemoryObj
    ) -> bool | None:
        of = self._key_to_path(key), _bytes(each), str(each.get_dtype())
        done: bool | None = await self._loop.run_in_executor(self._workers, work, *of)
        return done


def _bytes(each: MemoryObj) -> memoryview:
    content: Any = each.byte_array
    return memoryview(content).cast("B")
