"""The store behind vLLM's own offload: a secondary tier of `TieringOffloadingSpec`, vLLM 0.32.

    {"spec_name": "TieringOffloadingSpec", "cpu_bytes_to_use": 10000000000, "secondary_tiers": [
      {"type": "StoreTier", "module_path": "kv_tiers.vllm_tier",
       "nodes": ["10.0.0.1:6379", "10.0.0.2:6379"], "copies": 2}]}

What stands there beside `type` and `module_path` are TierSettings. vLLM calls from its scheduler's
thread, where nothing may wait: work is done on a loop in a thread of ours, and what is done is
fetched at the next step. Each chunk is placed by itself, as vLLM asks for each by itself.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Collection, Coroutine, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from vllm.platforms import current_platform
from vllm.v1.kv_offload.base import (
    LookupResult,
    OffloadingSpec,
    OffloadKey,
    ReqContext,
    RequestOffloadingContext,
    ScheduleEndContext,
)
from vllm.v1.kv_offload.file_mapper import FileMapper
from vllm.v1.kv_offload.tiering.async_lookup import AsyncLookupManager
from vllm.v1.kv_offload.tiering.base import JobResult, SecondaryTierManager, TransferJob

from kv_tiers.machine import instruction_set
from kv_tiers.store.coder import RawChunk
from kv_tiers.store.loop_thread import LoopThread
from kv_tiers.store.placement import WHOLE_CONTEXT
from kv_tiers.store.settings import TierSettings
from kv_tiers.store.tier import RemoteTier

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ChunkLayout:
    """A chunk as it lies in the first tier's memory: the first `size` bytes of a row, of this type
    and shape, as RawChunk has them. Of several groups of layers the shape is not known, and only
    codecs that are exact can be used."""

    size: int
    dtype: str
    shape: tuple[int, ...]
    machine: str
    """On which the order of its bytes depends, with the layout of the engine's cache."""

    @classmethod
    def of(cls, spec: OffloadingSpec, row_bytes: int) -> "ChunkLayout":
        """Of all workers together, whose parts of a chunk stand one after the other."""
        config, dtype = spec.config, spec.config.model.dtype.removeprefix("torch.")
        size = config.worker_kv_bytes_per_block * spec.blocks_per_chunk
        machine = instruction_set() if current_platform.is_cpu() else current_platform.device_name
        machine = f"{machine} {config.kv_cache_layout or ''}".rstrip()
        if config.parallel.world_size > 1 or len(config.groups) > 1:
            return cls(row_bytes, dtype, (row_bytes,), machine)
        (group,) = config.groups
        pages = len(group.layer_names) * spec.blocks_per_chunk
        item_bytes = 4 if dtype == "float32" else 2
        channels = size // (pages * group.tokens_per_block * item_bytes)
        return cls(size, dtype, (pages, group.tokens_per_block, channels), machine)

    def chunk(self, content: bytes | memoryview) -> RawChunk:
        """With these bytes."""
        return RawChunk(content, self.dtype, self.shape, self.machine)


class StoreLookups(AsyncLookupManager):
    """Asks the nodes from a thread of vLLM's, once for all that a request asks in a step."""

    def __init__(self, tier: "StoreTier", tier_type: str) -> None:
        self._tier = tier
        super().__init__(tier_type=tier_type)

    def batch_lookup(self, keys: list[OffloadKey], req_context: ReqContext) -> Iterable[bool]:
        """Parallel to `keys`; what it raises is a miss of them all."""
        return self._tier.there(keys)


class StoreTier(SecondaryTierManager):
    """A RemoteTier by vLLM's interface. A chunk that does not come whole and in time is a miss."""

    def __init__(
        self,
        offloading_spec: OffloadingSpec,
        primary_kv_view: memoryview,
        tier_type: str,
        backpressure_detector: Any = None,
        **settings: Any,
    ) -> None:
        """Raises ValueError for settings that cannot be."""
        super().__init__(offloading_spec, primary_kv_view, tier_type, backpressure_detector)
        told = TierSettings.of(settings)
        if told.run_chunks != WHOLE_CONTEXT:
            raise ValueError("run_chunks cannot be set here: vLLM asks for each chunk by itself")
        self._rows = np.asarray(primary_kv_view).view(np.uint8)
        self._layout = ChunkLayout.of(offloading_spec, self._rows.shape[1])
        self._names = FileMapper.from_offloading_spec(
            self._layout.chunk(b"").layout,
            offloading_spec,
            offloading_spec.blocks_per_chunk,
            parallel_agnostic=True,
        )
        self._loads: dict[int, tuple[OffloadKey, ...]] = {}
        self._finished: list[JobResult] = []
        self._open = 0
        self._changed = threading.Condition()
        self._thread = LoopThread(lambda: RemoteTier(told))
        self._lookups = StoreLookups(self, tier_type)

    def lookup(self, key: OffloadKey, req_context: ReqContext) -> LookupResult:
        """RETRY until the nodes have answered, at a later step."""
        found = self._lookups.lookup(key, req_context)
        if found is None:
            return LookupResult.RETRY
        return LookupResult.HIT if found else LookupResult.MISS

    def there(self, keys: Collection[OffloadKey]) -> list[bool]:
        """Wait for the nodes' answers; not to be called by the scheduler."""
        asked = self._thread.tier.there([*map(self._name, keys)])
        return asyncio.run_coroutine_threadsafe(asked, self._thread.loop).result()

    def submit_store(self, job_metadata: TransferJob) -> None:
        """Have chunks of the first tier kept: all of them, or the job has failed."""
        names = [*map(self._name, job_metadata.keys)]
        chunks = [*map(self._chunk, job_metadata.chunk_ids)]

        async def store() -> JobResult:
            begun_s = time.perf_counter()
            kept = await self._thread.tier.store(names, chunks)
            took_s = time.perf_counter() - begun_s
            # Of KV, as loads are counted, whatever the codec makes of it.
            size = self._layout.size * sum(map(bool, kept))
            return JobResult(job_metadata.job_id, all(kept), None, took_s, size)

        self._begin(job_metadata.job_id, store())

    def submit_load(self, job_metadata: TransferJob) -> None:
        """Have chunks written into rows of the first tier until the load's deadline, and never
        after the job has its result."""
        keys = self._loads[job_metadata.job_id] = tuple(job_metadata.keys)
        chunks = [*map(self._chunk, job_metadata.chunk_ids)]
        loaded: list[OffloadKey] = []

        def take(at: int, content: NDArray[np.uint8]) -> None:
            if len(content) == self._layout.size:  # or the rest would be of who had the row before
                self._rows[job_metadata.chunk_ids[at], : len(content)] = content
                loaded.append(keys[at])

        async def load() -> JobResult:
            begun_s = time.perf_counter()
            await self._thread.tier.load([*map(self._name, keys)], chunks, take)
            took_s, whole = time.perf_counter() - begun_s, len(loaded) == len(keys)
            part = None if whole or not loaded else tuple(loaded)
            return JobResult(
                job_metadata.job_id, whole, part, took_s, len(loaded) * self._layout.size
            )

        self._begin(job_metadata.job_id, load())

    def get_finished_jobs(self) -> Iterable[JobResult]:
        """Since the last call; what a load has not brought is a miss from now on."""
        with self._changed:
            finished, self._finished = self._finished, []
        for result in finished:
            keys = self._loads.pop(result.job_id, ())
            if not result.success:
                self._lookups.mark_miss(set(keys).difference(result.successful_keys or ()))
        return finished

    def on_new_request(self, req_context: ReqContext) -> RequestOffloadingContext:
        """No wish."""
        return RequestOffloadingContext()

    def on_request_finished(self, req_context: ReqContext) -> None:
        """Forget what it asked."""
        self._lookups.cleanup(req_context.req_id)

    def on_schedule_end(self, context: ScheduleEndContext) -> None:
        """Ask the nodes what was asked in this step."""
        self._lookups.flush()

    def drain_jobs(self) -> None:
        """Wait until no job reads or writes the first tier."""
        with self._changed:
            self._changed.wait_for(lambda: not self._open)

    def shutdown(self) -> None:
        """End the threads; a job that is under way fails. The first tier's memory is let go."""
        self._lookups.shutdown()
        self._thread.close()
        self._rows = np.empty((0, 0), np.uint8)

    def _begin(self, job_id: int, work: Coroutine[Any, Any, JobResult]) -> None:
        async def done() -> None:
            result = JobResult(job_id, False)
            try:
                result = await work
            except Exception:
                _LOG.exception("a job of the store has failed")
            finally:
                self._end(result)

        with self._changed:
            self._open += 1
        if not self._thread.start(done()):
            work.close()
            self._end(JobResult(job_id, False))

    def _end(self, result: JobResult) -> None:
        with self._changed:
            self._finished.append(result)
            self._open -= 1
            self._changed.notify_all()

    def _name(self, key: OffloadKey) -> bytes:
        """What tells a chunk from those of other models, layouts and engines, too."""
        return str(self._names.get_file_name(key)).encode()

    def _chunk(self, number: int) -> RawChunk:
        return self._layout.chunk(self._rows[number, : self._layout.size].data)
