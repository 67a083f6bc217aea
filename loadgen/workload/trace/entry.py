"""One request as a trace tells it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TraceEntry:
    """When a request came and how long it was.

    `at_s` counts from the first entry; None where the trace has no times. `block_ids` name the
    blocks of `block_tokens` tokens that the prompt is made of, the last of them perhaps cut off:
    equal leading ids are a shared prefix. Entries of one `session_id` follow each other. `prompt`
    and `reply` are the texts where the trace has them, and then the lengths are estimates.
    """

    at_s: float | None
    input_tokens: int
    output_tokens: int
    block_ids: tuple[int, ...] = ()
    block_tokens: int = 0
    session_id: str = ""
    prompt: str = ""
    reply: str = ""
