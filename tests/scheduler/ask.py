"""What a client asks of the virtual engine, adapters and grammars too."""

from dataclasses import dataclass

from vllm.lora.request import LoRARequest
from vllm.sampling_params import SamplingParams, StructuredOutputsParams
from vllm.v1.request import Request

from loadgen.twin.block_hashes import block_hasher
from loadgen.twin.ledger import TwinRequest


@dataclass(frozen=True, slots=True)
class Ask(TwinRequest):
    """`grammar_s` is how long after arrival its grammar is ready, None for free text; `lora` 0 is
    the base model."""

    lora: int = 0
    grammar_s: float | None = None


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
        block_hasher=block_hasher(block_size),
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
