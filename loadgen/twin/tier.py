"""KV behind the engine's cache: vLLM's own offload decides what is kept and loaded, links say when.

The connector and its manager are vLLM's, least recently used chunks go first. Behind memory there
may be files, which hold all. A load takes bytes / bandwidth + latency, one after the other on its
link. Storing takes no time. Importing this imports vLLM.
"""

import math
from collections import OrderedDict, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Self

from vllm.config import KVTransferConfig
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import (
    OffloadingConnectorMetadata,
    OffloadingWorkerMetadata,
)
from vllm.utils.math_utils import round_up
from vllm.v1.kv_offload.cpu.spec import CPUOffloadingSpec
from vllm.v1.outputs import KVConnectorOutput

from loadgen.errors import UsageError
from loadgen.locality.break_even import Link

FILE_CHUNKS = 10_000_000
"""Of files: nobody bounds their folder."""


@dataclass(frozen=True, slots=True)
class TierShape:
    """A tier of `tokens` in memory, in chunks of `chunk_tokens`, and where `files` is a link, files
    without a bound behind it. With `is_in_step` the engine's step waits for a load, as on a CPU;
    else a load runs beside steps and its request waits. Without a link to memory the calibrated
    time of a byte counts."""

    target: str
    tokens: int
    bytes_per_token: int
    memory: Link | None
    files: Link | None = None
    chunk_tokens: int = 128
    is_in_step: bool = False

    @property
    def memory_chunks(self) -> int:
        """That fit into memory. Raises UsageError for none."""
        found = self.tokens // self.chunk_tokens
        if not found:
            chunk = self.chunk_tokens * self.bytes_per_token
            raise UsageError(
                f"--l1-gb holds no chunk of {self.chunk_tokens} tokens ({chunk:,} bytes): give more"
            )
        return found

    @property
    def bytes_per_chunk(self) -> int:
        """As they lie in memory."""
        return self.chunk_tokens * self.bytes_per_token

    def transfer(self, block_size: int, bytes_per_block: int) -> KVTransferConfig:
        """As vLLM is told of it, for an engine whose blocks have so many bytes in its own eyes.
        Raises UsageError."""
        blocks = self.chunk_tokens // block_size
        if blocks * block_size != self.chunk_tokens or not blocks:
            raise UsageError(
                f"a tier's chunk of {self.chunk_tokens} tokens is no multiple of the engine's"
                f" block of {block_size}"
            )
        chunks = self.memory_chunks if self.files is None else FILE_CHUNKS
        each = round_up(blocks * bytes_per_block, CPUOffloadingSpec.BLOCK_SIZE_ALIGNMENT)
        extra = {
            "spec_name": "CPUOffloadingSpec",
            "cpu_bytes_to_use": chunks * each,
            "blocks_per_chunk": blocks,
        }
        return KVTransferConfig(
            kv_connector="OffloadingConnector", kv_role="kv_both", kv_connector_extra_config=extra
        )


@dataclass(frozen=True, slots=True)
class _Load:
    """Under way on a link; done at `done_s`."""

    job: int
    request: str
    done_s: float


@dataclass
class TierTransfers:
    """What is copied between an engine and its tier, on the counted clock; tokens that came from
    memory and from files. `byte_s` is the calibrated time of a byte."""

    tier: TierShape
    byte_s: float = 0.0
    memory_tokens: int = 0
    file_tokens: int = 0
    _loads: deque[_Load] = field(default_factory=deque)
    _stores: list[int] = field(default_factory=list)
    _in_memory: OrderedDict[int, None] = field(default_factory=OrderedDict)
    _link_free_s: float = 0.0

    @classmethod
    def of(cls, tier: TierShape | None, byte_s: float) -> Self | None:
        """None without a tier."""
        return None if tier is None else cls(tier, byte_s)

    def begin(self, meta: Any, now_s: float) -> tuple[float, int]:
        """What a step that begins now copies; seconds by which loads on a link make the step
        longer, and bytes whose time is calibrated."""
        if not isinstance(meta, OffloadingConnectorMetadata):
            return 0.0, 0
        waits_s, loaded_bytes = 0.0, 0
        for number, job in meta.load_jobs.items():
            chunks = job.src_spec.chunk_ids.tolist()
            took_s = self._took_s(chunks)
            if self.tier.is_in_step and self.tier.memory is None:
                loaded_bytes += len(chunks) * self.tier.bytes_per_chunk
                self._loads.append(_Load(number, job.req_id, now_s))
            elif self.tier.is_in_step:
                waits_s += took_s
                self._loads.append(_Load(number, job.req_id, now_s))
            else:
                self._link_free_s = max(self._link_free_s, now_s) + took_s
                self._loads.append(_Load(number, job.req_id, self._link_free_s))
        for number, job in meta.store_jobs.items():
            self._stores.append(number)
            self._touch(job.dst_spec.chunk_ids.tolist())
        return waits_s, loaded_bytes

    @property
    def next_s(self) -> float:
        """When the next load is done, infinite without one."""
        return self._loads[0].done_s if self._loads else math.inf

    def done(self, now_s: float) -> KVConnectorOutput | None:
        """What the engine is told of copies that are done by now."""
        done = OffloadingWorkerMetadata(completed_jobs=dict.fromkeys(self._stores, 1))
        self._stores = []
        arrived = set()
        while self._loads and self._loads[0].done_s <= now_s:
            load = self._loads.popleft()
            done.completed_jobs[load.job] = 1
            arrived.add(load.request)
        if not done.completed_jobs:
            return None
        return KVConnectorOutput(finished_recving=arrived, kv_connector_worker_meta=done)

    def _took_s(self, chunks: list[int]) -> float:
        """Of these, what is in memory and what is in files."""
        near = sum(chunk in self._in_memory for chunk in chunks)
        far = len(chunks) - near
        if self.tier.files is None:
            near, far = len(chunks), 0
        self._touch(chunks)
        self.memory_tokens += near * self.tier.chunk_tokens
        self.file_tokens += far * self.tier.chunk_tokens
        took_s = self._link_s(self.tier.memory, near)
        return took_s + (self._link_s(self.tier.files, far) if self.tier.files else 0.0)

    def _link_s(self, link: Link | None, chunks: int) -> float:
        if not chunks:
            return 0.0
        if link is None:
            return chunks * self.tier.bytes_per_chunk * self.byte_s
        return link.latency_s + chunks * self.tier.bytes_per_chunk / link.bytes_per_s

    def _touch(self, chunks: Iterable[int]) -> None:
        """They are the ones used last in memory, where files hold what leaves it."""
        if self.tier.files is None:
            return
        for chunk in chunks:
            self._in_memory.pop(chunk, None)
            self._in_memory[chunk] = None
        while len(self._in_memory) > self.tier.memory_chunks:
            self._in_memory.popitem(last=False)
