"""The worker that copies blocks of KV between an engine that computes on the CPU and host memory.

Both sides are memory of one process, so a copy is done when `submit_store` or `submit_load`
returns: nothing runs beside the engine's step, and there is nothing to wait for.
"""

import math
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from vllm.v1.kv_offload.base import (
    BlockIDsLoadStoreSpec,
    CanonicalKVCaches,
    GPULoadStoreSpec,
    OffloadingWorker,
    TransferResult,
)

if TYPE_CHECKING:
    from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion

Bytes = np.ndarray[Any, np.dtype[np.int8]]


class HostCopyWorker(OffloadingWorker):
    """Keeps `num_chunks` chunks of `blocks_per_chunk` blocks each.

    They lie in `region`, which is shared with a scheduler that hands them on to other tiers and is
    released with the worker; without one, in memory of the worker's own. With `load_bytes_per_s` a
    load takes as long as over a link of that bandwidth.
    """

    def __init__(
        self,
        caches: CanonicalKVCaches,
        blocks_per_chunk: int,
        num_chunks: int,
        region: "SharedOffloadRegion | None" = None,
        load_bytes_per_s: float = math.inf,
    ) -> None:
        self._blocks_per_chunk = blocks_per_chunk
        self._num_chunks = num_chunks
        self._region = region
        self._load_bytes_per_s = load_bytes_per_s
        self._engine = [_bytes(each.tensor, each.page_size_bytes) for each in caches.tensors]
        self._host = [self._chunks(each.page_size_bytes) for each in caches.tensors]
        self._groups = [
            [(ref.tensor_idx, ref.page_size_bytes) for ref in refs]
            for refs in caches.group_data_refs
        ]
        self._finished: list[TransferResult] = []

    def _chunks(self, page_bytes: int) -> Bytes:
        """Host memory for one tensor, by chunk and block of it."""
        bytes_per_chunk = page_bytes * self._blocks_per_chunk
        if self._region is None:
            chunks = torch.zeros((self._num_chunks, bytes_per_chunk), dtype=torch.int8)
        else:
            chunks = self._region.create_next_worker_view(bytes_per_chunk)
        shape = (self._num_chunks, self._blocks_per_chunk, page_bytes)
        pages: Bytes = chunks.view(shape).numpy()
        assert pages.ctypes.data == chunks.data_ptr(), "a copy would never reach the tier"
        return pages

    def submit_store(
        self, job_id: int, src_spec: GPULoadStoreSpec, dst_spec: BlockIDsLoadStoreSpec
    ) -> bool:
        """Copy blocks of the engine to chunks of the host."""
        self._transfer(job_id, src_spec, dst_spec, to_host=True)
        return True

    def submit_load(
        self, job_id: int, src_spec: BlockIDsLoadStoreSpec, dst_spec: GPULoadStoreSpec
    ) -> bool:
        """Copy chunks of the host to blocks of the engine."""
        self._transfer(job_id, dst_spec, src_spec, to_host=False)
        return True

    def get_finished(self) -> list[TransferResult]:
        """What was copied since the last call."""
        finished, self._finished = self._finished, []
        return finished

    def wait(self, job_ids: set[int]) -> None:
        """Nothing: what was submitted is done."""

    def shutdown(self) -> None:
        """Release the memory of both sides."""
        self._engine.clear()
        self._host.clear()
        if self._region is not None:
            self._region.cleanup()
            self._region = None

    def _transfer(
        self, job_id: int, engine: GPULoadStoreSpec, host: BlockIDsLoadStoreSpec, *, to_host: bool
    ) -> None:
        started_s = time.perf_counter()
        count = 0
        for group, block, chunk, place in self._pairs(engine, host):
            for tensor, page_bytes in self._groups[group]:
                source = self._engine[tensor][block, :page_bytes]
                kept = self._host[tensor][chunk, place, :page_bytes]
                if to_host:
                    kept[:] = source
                else:
                    source[:] = kept
                count += page_bytes
        if not to_host:
            left_s = count / self._load_bytes_per_s - (time.perf_counter() - started_s)
            time.sleep(max(left_s, 0.0))
        took_s = time.perf_counter() - started_s
        self._finished.append(TransferResult(job_id, True, count, took_s))

    def _pairs(
        self, engine: GPULoadStoreSpec, host: BlockIDsLoadStoreSpec
    ) -> Iterator[tuple[int, int, int, int]]:
        """Each block of the engine with its group, its chunk and its place in that.

        The blocks stand group by group. The first of a group may lie within a chunk, at its index
        in the request; the next group starts with a chunk of its own.
        """
        blocks, chunks = iter(engine.block_ids.tolist()), host.block_ids.tolist()
        used = 0
        for group, (size, index) in enumerate(
            zip(engine.group_sizes, engine.block_indices, strict=True)
        ):
            first = index % self._blocks_per_chunk
            for at in range(first, first + size):
                chunk, place = divmod(at, self._blocks_per_chunk)
                yield group, next(blocks), chunks[used + chunk], place
            used += -(-(first + size) // self._blocks_per_chunk) if size else 0
        _require_all_used(used, chunks)


def _require_all_used(used: int, chunks: Sequence[int]) -> None:
    """A transfer that leaves chunks over was not understood; its bytes would be of other tokens."""
    if used != len(chunks):
        raise ValueError(f"a transfer names {len(chunks)} chunks but its blocks fill {used}")


def _bytes(tensor: torch.Tensor, page_bytes: int) -> Bytes:
    """A view of the engine's own memory, a page a row."""
    pages: Bytes = tensor.view(torch.int8).view((-1, page_bytes)).numpy()
    assert pages.ctypes.data == tensor.data_ptr(), "a copy would never reach the engine"
    return pages
