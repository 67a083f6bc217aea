"""The OpenAI completion protocol: what a request says and what an event of its reply means."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import orjson

from loadgen.client.failures import Malformed, error_message, excerpt
from loadgen.client.settings import ClientSettings, Endpoint

DONE = b"[DONE]"
"""The payload that ends a stream."""

ROUTES: Mapping[Endpoint, str] = {
    "completions": "/v1/completions",
    "chat": "/v1/chat/completions",
}

_DELTA_CONTENT = ("content", "reasoning_content", "reasoning", "tool_calls", "refusal")


class Usage(NamedTuple):
    """Token counts as the host states them; None where it does not."""

    prompt_tokens: int | None
    cached_tokens: int | None
    output_tokens: int | None


class Event(NamedTuple):
    """What one event says.

    `content` is true when it carries output the user could see or token ids. `in_choice` tells a
    running usage, which comes with a choice, from the closing one.
    """

    content: bool
    in_choice: bool = False
    finish_reason: str | None = None
    usage: Usage | None = None


TOKEN = Event(content=True, in_choice=True)
"""The commonest event: content and nothing else."""


def request_body(
    settings: ClientSettings,
    prompt: str | Sequence[str],
    max_tokens: int,
    body_extra: Mapping[str, Any] | None = None,
) -> bytes:
    """The JSON body that asks for a streamed reply with its usage.

    A list of prompts is one call with a reply to each of them; completions only.
    """
    stream_options = {"include_usage": True}
    if settings.continuous_usage:
        stream_options["continuous_usage_stats"] = True
    body: dict[str, Any] = {
        "model": settings.model,
        "max_tokens": max_tokens,
        "stream": True,
        "stream_options": stream_options,
    }
    if settings.endpoint == "chat":
        body["messages"] = [{"role": "user", "content": prompt}]
    else:
        body["prompt"] = prompt
    if settings.temperature is not None:
        body["temperature"] = settings.temperature
    if settings.ignore_eos:
        body["ignore_eos"] = True
    body.update(settings.extra_body)
    if body_extra:
        body.update(body_extra)
    # A copy of its own size: what orjson returns keeps the room it was written in.
    return bytes(memoryview(orjson.dumps(body)))


def interpret(payload: bytes) -> Event:
    """The meaning of one event. Raises Malformed for no JSON object and for an error object."""
    event = decode(payload)
    usage = event.get("usage")
    choices = event.get("choices")
    if not choices:
        return Event(content=False, usage=usage_of(usage))
    if not isinstance(choices, list) or not isinstance(choices[0], dict):
        raise Malformed(f"an event has no list of choices: {excerpt(payload)}")
    return choice_event(choices[0], usage)


def decode(payload: bytes) -> dict[str, Any]:
    """One event as a dict. Raises Malformed for no JSON object and for an error object."""
    try:
        event = orjson.loads(payload)
    except orjson.JSONDecodeError:
        raise Malformed(f"an event is not JSON: {excerpt(payload)}") from None
    if not isinstance(event, dict):
        raise Malformed(f"an event is not a JSON object: {excerpt(payload)}")
    if event.get("error"):
        raise Malformed(f"error inside the stream: {error_message(event['error'])}")
    return event


def choice_event(choice: dict[str, Any], usage: object) -> Event:
    """What an event says about one of its choices, with the usage that came with it or None."""
    content = bool(choice.get("text")) or _has_other_content(choice)
    finish_reason = choice.get("finish_reason") or None
    if content and finish_reason is None and usage is None:
        return TOKEN
    return Event(
        content, True, None if finish_reason is None else str(finish_reason), usage_of(usage)
    )


def _has_other_content(choice: dict[str, Any]) -> bool:
    delta = choice.get("delta")
    if isinstance(delta, dict) and any(delta.get(name) for name in _DELTA_CONTENT):
        return True
    return bool(choice.get("token_ids"))


def usage_of(usage: object) -> Usage | None:
    """The counts of a usage object; None for anything else."""
    if not isinstance(usage, dict):
        return None
    details = usage.get("prompt_tokens_details")
    return Usage(
        prompt_tokens=_count(usage.get("prompt_tokens")),
        cached_tokens=_count(details.get("cached_tokens")) if isinstance(details, dict) else None,
        output_tokens=_count(usage.get("completion_tokens")),
    )


def _count(value: object) -> int | None:
    """A token count, or None: a host that does not know must not look like one that says 0."""
    return value if type(value) is int and value >= 0 else None
