"""The store as LMCache's second tier: an adapter for `lmcache server` of LMCache 0.5.6.

    --l2-adapter '{"type": "plugin", "module_path": "kv_tiers.lmcache_adapter",
      "class_name": "StoreAdapter",
      "adapter_params": {"nodes": ["10.0.0.1:6379", "10.0.0.2:6379"], "codec": "int8"}}'

`adapter_params` are TierSettings, and `file`: of a JSON object whose settings may change while it
serves. LMCache calls from threads of its own, and a call must not wait, raise, or stay without an
end: work is done on a loop in a thread of ours, and each task ends with a result.
"""

import asyncio
import itertools
import logging
import threading
from collections.abc import Callable, Coroutine, Mapping
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

from kv_tiers.store.coder import RawChunk
from kv_tiers.store.tier import RemoteTier, TierSettings

CLOSE_TIMEOUT_S = 10.0
_LOG = logging.getLogger(__name__)
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


class LoopThread:
    """An event loop in a daemon thread, with a RemoteTier that lives as long."""

    def __init__(self, tier: Callable[[], RemoteTier]) -> None:
        """`tier` is called on the loop; what it raises is raised here."""
        self.loop = asyncio.new_event_loop()
        self._end = asyncio.Event()
        self._started = threading.Event()
        self._calls: set[asyncio.Task[None]] = set()
        self._failure: Exception | None = None
        self.tier: RemoteTier
        self._thread = threading.Thread(
            target=self._run, args=(tier,), name="kv-store", daemon=True
        )
        self._thread.start()
        self._started.wait()
        if self._failure is not None:
            raise self._failure

    def start(self, work: Coroutine[Any, Any, None]) -> bool:
        """Have it done; False, and nothing is, once the loop has ended."""
        try:
            self.loop.call_soon_threadsafe(self._begin, work)
        except RuntimeError:
            work.close()
            return False
        return True

    def close(self) -> None:
        if self._thread.is_alive():
            self.loop.call_soon_threadsafe(self._end.set)
            self._thread.join(CLOSE_TIMEOUT_S)

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = self.loop.create_task(work)
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)

    def _run(self, tier: Callable[[], RemoteTier]) -> None:
        with asyncio.Runner(loop_factory=lambda: self.loop) as runner:
            runner.run(self._serve(tier))

    async def _serve(self, tier: Callable[[], RemoteTier]) -> None:
        try:
            self.tier = tier()
        except Exception as error:
            self._failure = error
            return
        finally:
            self._started.set()
        async with self.tier:
            await self._end.wait()
            for task in self._calls:  # and not what the tier itself has begun, which it ends
                task.cancel()
            await asyncio.gather(*self._calls, return_exceptions=True)


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
        """Nothing is locked: a chunk that a node evicts before it is loaded is computed again."""

        async def lookup() -> Bitmap:
            rows = [[*row] for _, row in itertools.groupby(keys, _row)]
            found = await self._thread.tier.lookup([[*map(key_bytes, row)] for row in rows])
            bits, start = Bitmap(len(keys)), 0
            for row, leading in zip(rows, found, strict=True):
                for at in range(start, start + leading):
                    bits.set(at)
                start += len(row)
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
    return RawChunk(content, dtype, tuple(source.get_shape()))
