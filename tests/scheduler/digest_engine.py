"""vLLM's scheduler, KV manager and offloading connector with our worker, and cells for a model.

A cell of the cache stands for the KV of one token in one head of one layer. It holds a digest of
all tokens up to it, as true KV is made of them. Each step checks every cell that a forward pass
would read, and writes those that it would write.
"""

import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from ask import Ask, make_request
from engine_shape import WINDOW_TOKENS, model_config
from vllm.config import CacheConfig, KVTransferConfig, SchedulerConfig, VllmConfig
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
from vllm.distributed.kv_transfer.kv_connector.v1.offloading_connector import OffloadingConnector
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    compute_layer_kv_cache_shape_bytes,
)
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput
from vllm.v1.request import RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

BLOCK_TOKENS, STEP_TOKENS, HEADS = 16, 256, 2
LAYERS = ("layer.0", "layer.1")
TOKEN = 7
PAUSE_S, STALLED_S = 0.0005, 20.0
CHUNK_BYTES = 4096  # a page of memory: what a small chunk takes
BLOCK_BYTES = len(LAYERS) * BLOCK_TOKENS * HEADS * 8  # what is copied of one

SPEC = FullAttentionSpec(
    block_size=BLOCK_TOKENS, num_kv_heads=HEADS, head_size=2, dtype=torch.bfloat16
)
Cells = np.ndarray[Any, np.dtype[np.uint64]]
FACTOR = np.cumprod(np.full(WINDOW_TOKENS, 0x9E3779B97F4A7C15, dtype=np.uint64))


def digests(tokens: Iterable[int]) -> Cells:
    """For each place a digest of all tokens up to it."""
    numbers = np.fromiter(tokens, dtype=np.uint64) + np.uint64(0x1234567)
    return np.cumsum(numbers * numbers * FACTOR[: len(numbers)], dtype=np.uint64)


def extra_config(chunks: int, spec: str = "HostOffloadingSpec", **more: Any) -> dict[str, Any]:
    """The connector's settings for so many chunks of host memory."""
    named = {"spec_name": spec, "spec_module_path": "kv_tiers.spec"}
    return {**named, "cpu_bytes_to_use": chunks * CHUNK_BYTES, **more}


def tier(
    kind: str, chunks: int, folder: Path, nodes: Sequence[str] = (), **more: Any
) -> dict[str, Any]:
    """Those settings, with nothing, files (vLLM's own or with checksums) or nodes of a store
    behind the memory."""
    if kind == "host":
        return extra_config(chunks, **more)
    if kind == "nodes":
        store = {"type": "StoreTier", "module_path": "kv_tiers.vllm_tier", "nodes": [*nodes]}
        store |= {"copies": min(len(nodes), 2), "node_deadline_s": 0.5, "codec": "lossless"}
        return extra_config(chunks, "HostTieringSpec", secondary_tiers=[store], **more)
    disk = {"root_dir": str(folder), "n_read_threads": 1, "n_write_threads": 1}
    own = {"type": "CheckedFiles", "module_path": "kv_tiers.vllm_files"}
    disk |= own if kind == "checked" else {"type": "fs"}
    return extra_config(chunks, "HostTieringSpec", secondary_tiers=[disk], **more)


@dataclass(slots=True)
class Row:
    """A request as the worker knows it."""

    blocks: list[int]
    tokens: list[int] = field(default_factory=list)


class DigestEngine:
    """`checked` cells were read, `wrong` of them held something else. `with` ends its threads."""

    def __init__(self, usable_blocks: int, extra: Mapping[str, Any]) -> None:
        self.checked = self.wrong = 0
        self.computed_tokens = 0
        self.loaded_bytes = self.stored_bytes = 0
        config = _config(usable_blocks, dict(extra))
        group = KVCacheGroupSpec(list(LAYERS), SPEC)
        cache = KVCacheConfig(
            num_blocks=usable_blocks + 1, kv_cache_tensors=[], kv_cache_groups=[group]
        )
        shape = compute_layer_kv_cache_shape_bytes(SPEC, usable_blocks + 1)
        caches = {name: torch.zeros(shape, dtype=torch.int8) for name in LAYERS}
        self.cells: list[Cells] = [each.numpy().view(np.uint64)[..., 0] for each in caches.values()]
        # The worker comes first, as in an engine.
        self.connector = OffloadingConnector(config, KVConnectorRole.WORKER, cache)
        self.connector.register_kv_caches(caches)
        self.scheduler = Scheduler(
            vllm_config=config,
            kv_cache_config=cache,
            structured_output_manager=StructuredOutputManager(config),
            block_size=BLOCK_TOKENS,
            hash_block_size=BLOCK_TOKENS,
            include_finished_set=False,
            log_stats=True,
        )
        self._rows: dict[str, Row] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.scheduler.connector.shutdown()
        self.connector.shutdown()

    @property
    def worker(self) -> Any:
        """What is tested."""
        return self.connector.connector_worker.worker

    @property
    def free_blocks(self) -> int:
        """Of the engine's cache, those that no request holds."""
        return int(self.scheduler.kv_cache_manager.block_pool.get_num_free_blocks())

    def submit(self, ask: Ask) -> None:
        """Queue one request."""
        self.scheduler.add_request(make_request(ask, BLOCK_TOKENS))

    def abort(self, *names: str) -> None:
        """What a client that goes away does."""
        self.scheduler.finish_requests(names, RequestStatus.FINISHED_ABORTED)

    def run(self) -> None:
        """Serve whatever was submitted, to the end."""
        deadline = time.monotonic() + STALLED_S
        while self.scheduler.has_unfinished_requests():
            if self.step():
                deadline = time.monotonic() + STALLED_S
            else:
                time.sleep(PAUSE_S)  # a tier's own threads are at work
            assert time.monotonic() < deadline, self.scheduler.get_request_counts()

    def settle(self) -> None:
        """Idle steps, in which an engine hands over what the last request left to be stored."""
        manager = self.scheduler.connector.connector_scheduler.manager
        for _ in range(4):
            self.step()
            for tier in getattr(manager, "secondary_tiers", ()):
                tier.drain_jobs()

    def reset(self, *, connector: bool) -> bool:
        """Empty the engine's cache, or that and the tiers behind it."""
        return bool(self.scheduler.reset_prefix_cache(reset_connector=connector))

    def step(self) -> bool:
        """One step as vLLM's runner does it; whether there was a token."""
        output = self.scheduler.schedule()
        meta = output.kv_connector_metadata
        self.connector.handle_preemptions(meta)
        self.connector.bind_connector_metadata(meta)
        if output.has_sync_kv_loads:
            self.connector.start_load_kv(None)
        for name in output.finished_req_ids:
            self._rows.pop(name, None)
        self._forward(output)
        if not output.has_sync_kv_loads:
            self.connector.start_load_kv(None)
        self.connector.wait_for_save()
        moved = self.connector.get_transfer_results(output.finished_req_ids)
        transfers = KVConnectorOutput(
            finished_sending=moved.finished_sending or None,
            finished_recving=moved.finished_recving or None,
            failed_recving=moved.failed_recving,
            kv_connector_worker_meta=self.connector.build_connector_worker_meta(),
        )
        if transfers.kv_connector_worker_meta is not None:
            stats = transfers.kv_connector_worker_meta.transfer_stats
            self.loaded_bytes += stats.load.bytes
            self.stored_bytes += stats.store.bytes
        self.connector.clear_connector_metadata()
        self.scheduler.update_from_output(output, self._result(output, transfers))
        return bool(output.num_scheduled_tokens)

    def _result(self, output: SchedulerOutput, transfers: KVConnectorOutput) -> ModelRunnerOutput:
        names = list(output.num_scheduled_tokens)
        requests = [self.scheduler.requests[name] for name in names]
        return ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: place for place, name in enumerate(names)},
            sampled_token_ids=[[] if each.is_prefill_chunk else [TOKEN] for each in requests],
            kv_connector_output=transfers,
        )

    def _forward(self, output: SchedulerOutput) -> None:
        starts = self._follow(output)
        for name, count in output.num_scheduled_tokens.items():
            tokens = list(self.scheduler.requests[name].all_token_ids)
            self._attend(self._rows[name].blocks, tokens, starts[name], starts[name] + count)
            self.computed_tokens += count

    def _follow(self, output: SchedulerOutput) -> dict[str, int]:
        """Keep the tables of blocks as a runner does; tokens that are there already, by request."""
        starts = {}
        for new in output.scheduled_new_reqs:
            self._rows[new.req_id] = Row(list(new.block_ids[0]))
            starts[new.req_id] = new.num_computed_tokens
        cached = output.scheduled_cached_reqs
        for name, blocks, start in zip(
            cached.req_ids, cached.new_block_ids, cached.num_computed_tokens, strict=True
        ):
            if name in cached.resumed_req_ids:
                self._rows[name] = Row([])
            self._rows[name].blocks += blocks[0] if blocks else []
            starts[name] = start
        return starts

    def _attend(self, blocks: list[int], tokens: list[int], start: int, end: int) -> None:
        expected = digests(tokens[:end])
        places = np.arange(end)
        at = np.array(blocks)[places // BLOCK_TOKENS], places % BLOCK_TOKENS
        for layer, cells in enumerate(self.cells):
            for head in range(HEADS):
                salted = expected ^ np.uint64(layer * HEADS + head + 1)
                read = cells[at[0][:start], head, at[1][:start]]
                self.checked += start
                self.wrong += int(np.count_nonzero(read != salted[:start]))
                cells[at[0][start:], head, at[1][start:]] = salted[start:]


def _config(usable_blocks: int, extra: dict[str, Any]) -> VllmConfig:
    config = VllmConfig(
        model_config=model_config(),
        scheduler_config=SchedulerConfig(
            max_model_len=WINDOW_TOKENS,
            is_encoder_decoder=False,
            max_num_seqs=8,
            max_num_batched_tokens=STEP_TOKENS,
            async_scheduling=False,
        ),
        cache_config=CacheConfig(block_size=BLOCK_TOKENS, enable_prefix_caching=True),
        kv_transfer_config=KVTransferConfig(
            kv_connector="OffloadingConnector",
            kv_role="kv_both",
            engine_id=f"digest-{uuid.uuid4().hex}",
            kv_connector_extra_config=extra,
        ),
    )
    config.cache_config.num_gpu_blocks = usable_blocks + 1
    config.scheduler_config.async_scheduling = False
    return config
