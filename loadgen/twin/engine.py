"""A vLLM engine with everything but the model: the real scheduler, and a clock that is counted.

One step is schedule(), a made-up token for each request whose prompt is done, and
update_from_output(); with async scheduling the next step is scheduled before the first one's
output is known, as EngineCore does with its batch queue. Importing this imports vLLM.
"""

import atexit
import json
import math
import shutil
import tempfile
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import torch
from vllm.config import (
    CacheConfig,
    DeviceConfig,
    KVTransferConfig,
    LoRAConfig,
    ModelConfig,
    SchedulerConfig,
    VllmConfig,
)
from vllm.sampling_params import SamplingParams
from vllm.utils.import_utils import resolve_obj_by_qualname
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine import EngineCoreOutput
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

from loadgen.twin.block_hashes import context_hashes
from loadgen.twin.ledger import Admission, EngineLedger, Step, TwinRequest
from loadgen.twin.step_time import StepTime, StepWork
from loadgen.twin.tier import TierShape, TierTransfers

WINDOW_TOKENS = 12288
"""Longest request of a shape that does not say."""
MODEL = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "hidden_size": 512,
    "intermediate_size": 1408,
    "num_hidden_layers": 1,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "vocab_size": 32768,
    "torch_dtype": "bfloat16",
}
"""What vLLM wants to know of a model to make a scheduler; none of it is computed with."""
KV_HEADS, HEAD_SIZE = 2, 64
KV_BYTES = 2 * KV_HEADS * HEAD_SIZE * 2
"""Of a token of it."""
TOKEN = 7
LONGEST_WAIT_S = 0.005
"""Of a step that computes nothing, as all wait for a load."""
STEPS_WITHOUT_TOKENS = 10_000
PLUGIN = "scheduler_plugin.ContextScheduler"


@dataclass(frozen=True, slots=True)
class EngineShape:
    """The sizes of one engine; the defaults are those of vLLM's own CPU server.

    `plugin` holds the settings of the context scheduler, None gives vLLM's own class.
    """

    usable_blocks: int = 80
    block_size: int = 128
    max_num_seqs: int = 128
    max_num_batched_tokens: int = 2048
    async_scheduling: bool = False
    vllm_policy: str = "fcfs"
    plugin: tuple[tuple[str, Any], ...] | None = None
    max_model_len: int = WINDOW_TOKENS
    prefix_caching: bool = True
    tier: TierShape | None = None

    @property
    def transfer(self) -> KVTransferConfig | None:
        """The connector behind the engine's cache."""
        if self.tier is None:
            return None
        return self.tier.transfer(self.block_size, self.block_size * KV_BYTES)

    @property
    def lora(self) -> LoRAConfig | None:
        """Adapters; there are none."""
        return None


@cache
def model_config(max_model_len: int = WINDOW_TOKENS) -> ModelConfig:
    """Of a model that exists in its configuration alone."""
    directory = Path(tempfile.mkdtemp(prefix="kvswarm-shape-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    content = {**MODEL, "max_position_embeddings": max_model_len}
    (directory / "config.json").write_text(json.dumps(content))
    return ModelConfig(
        model=str(directory),
        skip_tokenizer_init=True,
        dtype="bfloat16",
        max_model_len=max_model_len,
        enforce_eager=True,
    )


@cache
def _vllm_config(shape: EngineShape) -> VllmConfig:
    scheduler = SchedulerConfig(
        max_model_len=shape.max_model_len,
        is_encoder_decoder=False,
        max_num_seqs=shape.max_num_seqs,
        max_num_batched_tokens=shape.max_num_batched_tokens,
        async_scheduling=shape.async_scheduling,
        policy=shape.vllm_policy,
        disable_hybrid_kv_cache_manager=True,
    )
    cache_config = CacheConfig(
        block_size=shape.block_size, enable_prefix_caching=shape.prefix_caching
    )
    plugin = {} if shape.plugin is None else {"context_scheduler": dict(shape.plugin)}
    config = VllmConfig(
        model_config=model_config(shape.max_model_len),
        scheduler_config=scheduler,
        cache_config=cache_config,
        device_config=DeviceConfig("cpu"),  # vLLM looks for a GPU where it is built for one
        lora_config=shape.lora,
        kv_transfer_config=shape.transfer,
        additional_config=plugin,
    )
    config.cache_config.num_gpu_blocks = shape.usable_blocks + 1
    config.scheduler_config.async_scheduling = shape.async_scheduling
    return config


def build_scheduler(shape: EngineShape) -> Scheduler:
    """A scheduler as EngineCore builds it; its KV cache has one block more than is usable."""
    config = _vllm_config(shape)
    spec = FullAttentionSpec(
        block_size=shape.block_size,
        num_kv_heads=KV_HEADS,
        head_size=HEAD_SIZE,
        dtype=torch.bfloat16,
    )
    group = KVCacheGroupSpec(["layer"], spec)
    return _scheduler_class(shape)(
        vllm_config=config,
        kv_cache_config=KVCacheConfig(
            num_blocks=shape.usable_blocks + 1, kv_cache_tensors=[], kv_cache_groups=[group]
        ),
        structured_output_manager=StructuredOutputManager(config),
        block_size=shape.block_size,
        hash_block_size=shape.block_size,
        include_finished_set=False,
        log_stats=True,
    )


def _scheduler_class(shape: EngineShape) -> Any:
    if shape.plugin is not None:
        return resolve_obj_by_qualname(PLUGIN)
    return AsyncScheduler if shape.async_scheduling else Scheduler


def make_request(request: TwinRequest, block_size: int) -> Request:
    """The request EngineCore would hand to its scheduler, with real block hashes."""
    label = request.sent_label if request.labelled else None
    return Request(
        request_id=request.name,
        prompt_token_ids=list(request.prompt),
        sampling_params=_sampling(request.output_tokens, label),
        pooling_params=None,
        arrival_time=request.arrival_s,
        priority=request.priority,
        block_hasher=context_hashes(block_size).of(request.context),
    )


@lru_cache(1 << 12)
def _sampling(output_tokens: int, label: str | None) -> SamplingParams:
    """Requests that are alike share it: vLLM's scheduler only reads it."""
    return SamplingParams(
        max_tokens=output_tokens,
        ignore_eos=True,
        temperature=0.0,
        extra_args={"context": label} if label is not None else None,
    )


@dataclass(frozen=True, slots=True)
class StepInFlight:
    """A scheduled step whose output is not processed yet."""

    output: SchedulerOutput
    sampling: frozenset[str]
    ends_s: float


OnStep = Callable[["VirtualEngine", SchedulerOutput], None]


class VirtualEngine:
    """Runs requests through the scheduler of `shape`; `ledger` says what happened, of all of it
    where it `is_whole`. `finished` are the replies that were complete with the last step.

    `on_step` is called after each schedule(), before its output is processed.
    """

    def __init__(
        self,
        shape: EngineShape,
        cost: StepTime | None = None,
        on_step: OnStep | None = None,
        is_whole: bool = True,
    ) -> None:
        self.shape = shape
        self.now_s = 0.0
        self.scheduler = build_scheduler(shape)
        if shape.plugin is not None:
            self.scheduler.clock_s = lambda: self.now_s
        self.ledger = EngineLedger(is_whole)
        self.finished: list[str] = []
        self._cost = cost or StepTime()
        self.tier = TierTransfers.of(shape.tier, self._cost.loaded_byte_s)
        self._on_step = on_step
        self._depth = 2 if shape.async_scheduling else 1
        self._flights: deque[StepInFlight] = deque()
        self._free_at_s = 0.0
        self._unadmitted: dict[str, TwinRequest] = {}

    def submit(self, request: TwinRequest) -> Request:
        """Queue one request now."""
        made = self.request_of(request)
        self.ledger.arrive(request, self._unadmitted.values())
        self._unadmitted[request.name] = request
        self.scheduler.add_request(made)
        return made

    def request_of(self, request: TwinRequest) -> Request:
        """What vLLM gets."""
        return make_request(request, self.shape.block_size)

    def abort(self, *names: str) -> None:
        """What a client that goes away does; names nobody knows are allowed."""
        for name in names:
            self._unadmitted.pop(name, None)
        self.scheduler.finish_requests(names, RequestStatus.FINISHED_ABORTED)

    def run(self, requests: Iterable[TwinRequest] = ()) -> EngineLedger:
        """Serve all of them at their arrival times, to the end."""
        coming = deque(sorted(requests, key=lambda each: each.arrival_s))
        idle_steps = 0
        while coming or self.busy:
            if not self.busy:
                self.now_s = max(self.now_s, coming[0].arrival_s)
            while coming and coming[0].arrival_s <= self.now_s:
                self.submit(coming.popleft())
            idle_steps = 0 if self.step() else idle_steps + 1
            if idle_steps > STEPS_WITHOUT_TOKENS:
                raise AssertionError(f"no token in {idle_steps} steps: {self.stuck()}")
        return self.ledger

    @property
    def busy(self) -> bool:
        """Whether anything is queued, running or in flight."""
        return bool(self._flights) or self.scheduler.has_unfinished_requests()

    @property
    def leaked_blocks(self) -> int:
        """Blocks still held; 0 once everything is finished."""
        free: int = self.scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
        return self.shape.usable_blocks - free

    def step(self) -> bool:
        """Schedule until the pipeline is full, then process one output; False without tokens."""
        self.finished = []
        while self.scheduler.has_unfinished_requests() and len(self._flights) < self._depth:
            flight = self._schedule()
            self._flights.append(flight)
            if not flight.output.total_num_scheduled_tokens:
                break
        if not self._flights:
            return False
        return self._land(self._flights.popleft())

    def before_schedule(self) -> None:
        """Called before each schedule(); does nothing here."""

    def transfers(self) -> KVConnectorOutput | None:
        """What a connector has done by now."""
        return None if self.tier is None else self.tier.done(self.now_s)

    def _schedule(self) -> StepInFlight:
        self.before_schedule()
        output = self.scheduler.schedule()
        work, sampling = self._account(output)
        if self._on_step is not None:
            self._on_step(self, output)
        begins_s = max(self._free_at_s, self.now_s)
        if self.tier is None:
            self._free_at_s = begins_s + self._cost.seconds(work)
        else:
            work = self._transfer(self.tier, output, work, begins_s)
        preempted = frozenset(output.preempted_req_ids or ())
        scheduled = tuple(output.num_scheduled_tokens.items())
        self.ledger.add_step(Step(scheduled, preempted, work, begins_s, self._free_at_s))
        return StepInFlight(output, frozenset(sampling), self._free_at_s)

    def _transfer(
        self, tier: TierTransfers, output: SchedulerOutput, work: StepWork, begins_s: float
    ) -> StepWork:
        """Begin what this step copies; a step in which all wait for a load ends with that."""
        waits_s, loaded_bytes = tier.begin(output.kv_connector_metadata, begins_s)
        work = replace(work, loaded_bytes=loaded_bytes)
        self._free_at_s = begins_s + self._cost.seconds(work) + waits_s
        if work.is_empty and tier.next_s < math.inf:
            self._free_at_s = max(self._free_at_s, min(tier.next_s, begins_s + LONGEST_WAIT_S))
        return work

    def _account(self, output: SchedulerOutput) -> tuple[StepWork, set[str]]:
        """Count one scheduled step; which of its requests give a token."""
        resumed = set(output.scheduled_cached_reqs.resumed_req_ids)
        admitted = resumed | {request.req_id for request in output.scheduled_new_reqs}
        prefill, attended, decodes, read, sampling = 0, 0.0, 0, 0, set()
        for name, count in output.num_scheduled_tokens.items():
            request = self.scheduler.requests[name]
            end, start = request.num_computed_tokens, request.num_computed_tokens - count
            prompt = max(0, min(end, request.num_prompt_tokens) - start)
            if not request.is_prefill_chunk:
                sampling.add(name)
            if count == 1 and start >= request.num_prompt_tokens:
                decodes += 1
                read += end
            else:
                prefill += count
                attended += count * (start + count / 2)
                self.ledger.replayed_tokens += count - prompt
            self.ledger.computed_tokens += prompt
            if name in admitted:
                self._admit(name, name in resumed)
        self.ledger.decode_tokens += decodes
        return StepWork(prefill, attended, decodes, read), sampling

    def _admit(self, name: str, again: bool) -> None:
        self._unadmitted.pop(name, None)
        admission = Admission(name, len(self.ledger.steps), self.now_s, again)
        self.ledger.admit(admission)

    def _land(self, flight: StepInFlight) -> bool:
        self.now_s = max(self.now_s, flight.ends_s)
        names = list(flight.output.num_scheduled_tokens)
        result = ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: place for place, name in enumerate(names)},
            sampled_token_ids=[[TOKEN] if name in flight.sampling else [] for name in names],
            kv_connector_output=self.transfers(),
        )
        for reply in self.scheduler.update_from_output(flight.output, result).values():
            for piece in reply.outputs:
                self._receive(piece)
        return bool(names)

    def _receive(self, piece: EngineCoreOutput) -> None:
        name: str = piece.request_id
        ledger, stats = self.ledger, piece.prefill_stats
        ledger.add_tokens(name, [self.now_s] * len(piece.new_token_ids))
        if stats is not None:
            ledger.reported_tokens += stats.num_computed_tokens
            ledger.reported_cached_tokens += stats.num_local_cached_tokens
            ledger.reported_external_tokens += stats.num_external_cached_tokens
            ledger.cached_tokens.setdefault(name, stats.num_cached_tokens)
        if piece.finish_reason is not None:
            ledger.finished_s[name] = self.now_s
            self.finished.append(name)

    def stuck(self) -> str:
        """Where it stands, for an error."""
        running, waiting = self.scheduler.get_request_counts()
        return f"{running} running, {waiting} waiting at {self.now_s:.3f} s"
