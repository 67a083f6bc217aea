"""What a client asks of the virtual engine, and the vLLM request made of it."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from vllm.lora.request import LoRARequest
from vllm.sampling_params import SamplingParams, StructuredOutputsParams
from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.request import Request


@dataclass(frozen=True, slots=True)
class Ask:
    """One request: `context` is its true context, sent as label only where `labelled`.

    `grammar_s` is how long after arrival its grammar is ready, None for free text; `lora` 0 is the
    base model.
    """

    name: str
    context: str
    prompt: tuple[int, ...]
    arrival_s: float = 0.0
    output_tokens: int = 8
    labelled: bool = True
    priority: int = 0
    lora: int = 0
    grammar_s: float | None = None


@cache
def _hasher(block_size: int) -> Callable[[Request], list[Any]]:
    hash_fn = get_hash_fn_by_name("sha256")
    init_none_hash(hash_fn)
    return get_request_block_hasher(block_size, hash_fn)


def make_request(ask: Ask, block_size: int) -> Request:
    """The request EngineCore would hand to its scheduler, with real block hashes."""
    return Request(
        request_id=ask.name,
        prompt_token_ids=list(ask.prompt),
        sampling_params=_sampling(ask),
        pooling_params=None,
        arrival_time=ask.arrival_s,
        lora_request=LoRARequest(f"lora-{ask.lora}", ask.lora, "/none") if ask.lora else None,
        priority=ask.priority,
        block_hasher=_hasher(block_size),
    )


def _sampling(ask: Ask) -> SamplingParams:
    grammar = None if ask.grammar_s is None else StructuredOutputsParams(regex="a+")
    return SamplingParams(
        max_tokens=ask.output_tokens,
        ignore_eos=True,
        temperature=0.0,
        structured_outputs=grammar,
        extra_args={"context": ask.context} if ask.labelled else None,
    )
