"""The store as LMCache's second tier: an adapter for `lmcache server` of LMCache 0.5.6.

    --l2-adapter '{"type": "plugin", "module_path": "kv_tiers.lmcache_adapter",
      "class_name": "StoreAdapter",
      "adapter_params": {"nodes": ["10.0.0.1:6379", "10.0.0.2:6379"], "codec": "int8"}}'

`adapter_params` are TierSettings, and `file`: of a JSON object whose settings may change while it
serves. LMCache calls from threads of its own, and a call must not wait, raise, or stay without an
end: work is done on a loop in a thread of ours, and each task ends with a result.
"""

import itertools
import logging
import threading
from collections.abc import Coroutine, Mapping
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
from lmcache.lmcache_native import Bitmap
from lmcache.v1.distributed.api import ObjectKey
from lmcache.v1.distributed.internal_api import L2StoreResult
from lmcache.v1.distributed.l2_adapters.base import L2AdapterInterface
from lmcache.v1.memory_management import MemoryObj
from lmcache.v1.platform import create_event_notifier
from numpy.typing import NDArray

from kv_tiers.machine import instruction_set
from kv_tiers.store.coder import RawChunk
from kv_tiers.store.loop_thread import LoopThread
from kv_tiers.store.settings import TierSettings
from kv_tiers.store.tier import RemoteTier

_LOG = logging.getLogger(__name__)
PACKED = 3
"""Sizes of a chunk whose bytes lie as the engine's CPU likes them."""
_Result = TypeVar("_Result")


class FinishedTasks(Generic[_Result]):
    """Results of one kind of task, each taken once, and the descriptor that tells of them."""

    def __init__(self) -> None:
        self.notifier = create_event_notifier()
        self._lock = threading.Lock()
        self._results: dict[int, _Result] = {}

    def add(self, task: int, result: _Result) -> None:
        """First the result, then the notice: who is woken finds it."""
        with self._lock:
            self._results[task] = result
        self.notifier.notify()

    def take(self, task: int) -> _Result | None:
        with self._lock:
            return self._results.pop(task, None)

    def take_all(self) -> dict[int, _Result]:
        with self._lock:
            found, self._results = self._results, {}
        return found


class StoreAdapter(L2AdapterInterface):
    """Eleven methods of LMCache over a RemoteTier."""

    def __init__(self, params: Mapping[str, Any], l1_memory_desc: object = None) -> None:
        """Raises ValueError for settings that cannot be."""
        super().__init__(max_capacity_bytes=0)  # the nodes themselves evict when they are full
        given = dict(params)
        file = given.pop("file", None)
        settings = TierSettings.of(given)
        self._stored = FinishedTasks[L2StoreResult]()
        self._looked_up = FinishedTasks[Bitmap]()
        self._loaded = FinishedTasks[Bitmap]()
        self._numbers = itertools.count()
        self._thread = LoopThread(lambda: RemoteTier(settings, Path(file) if file else None))

    def get_store_event_fd(self) -> int:
        return int(self._stored.notifier.fileno())

    def get_lookup_and_lock_event_fd(self) -> int:
        return int(self._looked_up.notifier.fileno())

    def get_load_event_fd(self) -> int:
        return int(self._loaded.notifier.fileno())

    def submit_store_task(self, keys: list[ObjectKey], objects: list[MemoryObj]) -> int:
        """All chunks of it must have been kept for it to have succeeded."""

        async def store() -> L2StoreResult:
            chunks = [*map(_raw_chunk, objects)]
            kept = await self._thread.tier.store([*map(key_bytes, keys)], chunks)
            there = [at for at, size in enumerate(kept) if size]
            self._notify_keys_stored([keys[at] for at in there], [kept[at] for at in there])
            return L2StoreResult(len(there) == len(keys), sum(kept))

        return self._submit(store(), self._stored, L2StoreResult(False, 0))

    def pop_completed_store_tasks(self) -> dict[int, L2StoreResult]:
        return self._stored.take_all()

    def submit_lookup_and_lock_task(
        self, keys: list[ObjectKey], group_layout_descs: Mapping[int, object]
    ) -> int:
        """Nothing is locked: a chunk that a node evicts before it is loaded is computed again. What
        lies behind a gap is told too, as LMCache's own memory may fill it."""

        async def lookup() -> Bitmap:
            rows = [[*row] for _, row in itertools.groupby(keys, _row)]
            found = await self._thread.tier.held([[*map(key_bytes, row)] for row in rows])
            bits = Bitmap(len(keys))
            for at in (at for at, is_there in enumerate(found) if is_there):
                bits.set(at)
            return bits

        return self._submit(lookup(), self._looked_up, Bitmap(len(keys)))

    def query_lookup_and_lock_result(self, task_id: int) -> Bitmap | None:
        return self._looked_up.take(task_id)

    def submit_unlock(self, keys: list[ObjectKey]) -> None:
        """Nothing was locked."""

    def submit_load_task(self, keys: list[ObjectKey], objects: list[MemoryObj]) -> int:
        """Buffers are written to until the task has its result, and never after that."""
        bits = Bitmap(len(keys))

        async def load() -> Bitmap:
            def take(at: int, content: NDArray[np.uint8]) -> None:
                memoryview(objects[at].byte_array).cast("B")[: len(content)] = content.data
                if len(content) < objects[at].get_size():
                    objects[at].set_used_size(len(content))
                bits.set(at)

            like = [*map(_raw_chunk, objects)]
            await self._thread.tier.load([*map(key_bytes, keys)], like, take)
            return bits

        return self._submit(load(), self._loaded, bits)

    def query_load_result(self, task_id: int) -> Bitmap | None:
        return self._loaded.take(task_id)

    def report_status(self) -> dict[str, Any]:
        """What LMCache's status route shows."""
        return {"is_healthy": True, "type": "StoreAdapter", **self._thread.tier.status()}

    def close(self) -> None:
        self._thread.close()
        for tasks in (self._stored, self._looked_up, self._loaded):
            tasks.notifier.close()

    def _submit(
        self,
        work: Coroutine[Any, Any, _Result],
        finished: FinishedTasks[_Result],
        nothing: _Result,
    ) -> int:
        """The number of a task that ends with what `work` returns, or with `nothing`."""
        task = next(self._numbers)

        async def done() -> None:
            result = nothing
            try:
                result = await work
            except Exception:
                _LOG.exception("a task of the store has failed")
            finally:
                finished.add(task, result)

        if not self._thread.start(done()):
            work.close()
            finished.add(task, nothing)
        return task


def key_bytes(key: ObjectKey) -> bytes:
    """What tells a chunk from all others: it stands for its whole prefix."""
    parts = (key.model_name, key.kv_rank, key.object_group_id, key.cache_salt)
    return "@".join(map(str, parts)).encode() + b"@" + bytes(key.chunk_hash)


def _row(key: ObjectKey) -> tuple[object, ...]:
    """LMCache asks for all chunks of a context at once, one group and rank after the other."""
    return key.model_name, key.kv_rank, key.object_group_id, key.cache_salt


def _raw_chunk(source: MemoryObj) -> RawChunk:
    dtype = str(source.get_dtype()).removeprefix("torch.")
    content = memoryview(source.byte_array).cast("B")
    shape = tuple(source.get_shape())
    return RawChunk(content, dtype, shape, instruction_set() if len(shape) == PACKED else "")
