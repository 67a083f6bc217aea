"""The OpenAI completion protocol: what a request says and what an event of its reply means."""

import contextlib
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import orjson

from loadgen.client.failures import (
    Malformed,
    error_message,
    excerpt,
    failure_in_stream,
    host_message,
    is_harmless,
    is_no_error,
    tells_failure,
)
from loadgen.client.finish import finish_of, is_good_finish, words_beside
from loadgen.client.settings import ClientSettings, Endpoint, of_length
from loadgen.client.sse import FailureData

DONE = b"[DONE]"
"""The payload that ends a stream."""

ROUTES: Mapping[Endpoint, str] = {
    "completions": "/v1/completions",
    "chat": "/v1/chat/completions",
}

_REASONING = ("reason", "think", "thought")
"""In the names of fields with reasoning: `reasoning_content`, `thinking`."""

_LABEL = re.compile(
    r"role|id|type|index|object|format|model|provider|created|timestamp|status|channel|recipient|phase"
    r"|usage|context|annotations|citations|references|documents|sources|metadata"
    r"|(?:extra|finish|matched|prompt|provider|end)_.*|(?:stop|done|eos).*"
    r"|.*_(?:id|ids|at|results?|ratings|metadata)"
    r"|.*(?:finish|end|_)reason|.*(?:logprobs|signature|fingerprint|encrypted|opaque|cache_control).*"
)
"""Fields that describe output, or hide it, and are none. All others may be: hosts keep inventing
names."""

MAX_TOKENS = 10**9
"""From here on what a host states is no count."""

_USUAL = {
    *("id", "object", "created", "model", "choices", "usage", "error", "system_fingerprint"),
    *("service_tier", "provider", "kv_transfer_params", "prompt_token_ids"),
}
_OBJECTS = (None, "text_completion", "chat.completion.chunk", "chat.completion")
"""What stands in the usual event, which tells no failure but by its field `error`."""

_CACHED = ("cached_tokens", "prompt_cache_hit_tokens", "cache_read_input_tokens")
_PROMPT_DETAILS = ("prompt_tokens_details", "input_tokens_details")
_OUTPUT_DETAILS = ("completion_tokens_details", "output_tokens_details")
_BESIDE_INPUT = ("cache_read_input_tokens", "cache_creation_input_tokens")
"""Anthropic's counts of prompt tokens that `input_tokens` lacks."""

_HIDDEN = re.compile("encrypted|redacted")
"""In the types of parts that nobody can read."""

_INTEGER = re.compile(r"\s*([0-9]+)(?:\.0*)?\s*")


class Usage(NamedTuple):
    """Token counts as the host states them; None where it does not.

    `reasoning_tokens` are those of `output_tokens` that it spent on reasoning, streamed or not, and
    on predictions that it rejected.
    """

    prompt_tokens: int | None
    cached_tokens: int | None
    output_tokens: int | None
    reasoning_tokens: int = 0


class Event(NamedTuple):
    """What one event says.

    `content` is true when it carries output the user could see or token ids. `in_choice` tells a
    running usage, which comes with a choice, from the closing one, and from that of an event which
    names the role and brings nothing. `is_whole` is true of a whole message at the end. `words`
    stand beside a finish reason that is no good one.
    """

    content: bool
    in_choice: bool = False
    finish_reason: str | None = None
    usage: Usage | None = None
    is_reasoning: bool = False
    is_whole: bool = False
    words: str = ""


TOKEN = Event(content=True, in_choice=True)
"""The commonest event: content and nothing else."""

REASONING = Event(content=True, in_choice=True, is_reasoning=True)
"""As TOKEN, with reasoning."""


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
    body.update(of_length(settings.extra_body, max_tokens))
    if body_extra:
        body.update(body_extra)
    # A copy of its own size: what orjson returns keeps the room it was written in.
    return bytes(memoryview(orjson.dumps(body)))


def is_done(payload: bytes) -> bool:
    """Whether this payload ends the stream, however it is spaced or quoted."""
    return len(payload) < 16 and payload.strip(b' \t"\x00[]').upper() == b"DONE"


def interpret(payload: bytes) -> Event:
    """The meaning of one event. Raises Malformed for no JSON object, else what an error means."""
    event = decode(payload)
    choices = event.get("choices")
    if not choices:
        return Event(content=False, usage=usage_of(event))
    if not isinstance(choices, list) or not isinstance(choices[0], dict):
        raise Malformed(f"an event has no list of choices: {excerpt(payload)}")
    choice, told = choices[0], choice_event(choices[0], usage_of(event))
    if told.finish_reason is not None and event.get("object") == "chat.completion":
        return told._replace(is_whole=_is_message(choice))
    return told


def _is_message(choice: dict[str, Any]) -> bool:
    """Whether it is a whole message: the last of those that come in pieces has no role."""
    message = choice.get("message")
    is_whole = isinstance(message, dict) and bool(message.get("role"))
    return is_whole and not (choice.get("delta") or choice.get("text"))


def decode(payload: bytes) -> dict[str, Any]:
    """One event as a dict. Raises Malformed for no JSON object, else what an error means."""
    if isinstance(payload, FailureData):
        raise failure_in_stream(error_in(payload))
    try:
        event = orjson.loads(payload)
    except orjson.JSONDecodeError:
        raise Malformed(f"an event is not JSON: {excerpt(payload)}") from None
    if event is None:
        return {}
    if not isinstance(event, dict):
        raise Malformed(f"an event is not a JSON object: {excerpt(payload)}")
    is_usual = event.keys() <= _USUAL and event.get("object") in _OBJECTS and event.get("choices")
    if not is_no_error(event.get("error")) or (not is_usual and tells_failure(event)):
        raise failure_in_stream(event)
    return event


def error_in(payload: bytes) -> object:
    """An error as the host put it: an object, else its words."""
    with contextlib.suppress(orjson.JSONDecodeError):
        return orjson.loads(payload)
    return host_message(payload)


def require_no_failure(payload: bytes) -> None:
    """Of data without an end, which may be cut off. Raises Malformed where they tell a failure."""
    if isinstance(payload, FailureData) or not payload.lstrip().startswith((b"{", b"[")):
        decode(payload)
    with contextlib.suppress(orjson.JSONDecodeError):
        orjson.loads(payload)
        decode(payload)


def words_of_body(body: bytes) -> str:
    """What a body that is no stream says of a failure; nothing where it is a whole completion."""
    with contextlib.suppress(orjson.JSONDecodeError):
        decoded = orjson.loads(body)
        is_reply = isinstance(decoded, dict) and "choices" in decoded and not tells_failure(decoded)
        return "" if is_reply or not decoded else error_message(decoded)
    return host_message(body).strip()


def words_of_event(payload: bytes) -> str:
    """What an event says that brought nothing; nothing where it is a choice's or a ping."""
    event = orjson.loads(payload or b"{}")
    is_told = event and "choices" not in event and not is_harmless(event)
    return error_message(event) if is_told else ""


def choice_event(choice: dict[str, Any], usage: Usage | None) -> Event:
    """What an event says about one of its choices, with the usage that came with it or None.

    Raises what an error means.
    """
    finish_reason = finish_of(choice.get("finish_reason"))
    if finish_reason is not None and not is_good_finish(finish_reason):
        return _given_up(choice, finish_reason, usage)
    if choice.get("text") and "error" not in choice:
        is_token = finish_reason is None and usage is None
        return TOKEN if is_token else Event(True, True, finish_reason, usage)
    delta = _delta_of(choice)
    _require_no_error(choice, delta)
    content, is_reasoning = _delta_output(delta)
    content = content or bool(choice.get("token_ids"))
    if content and finish_reason is None and usage is None:
        return REASONING if is_reasoning else TOKEN
    is_role = not content and isinstance(delta, dict) and bool(delta.get("role"))
    return Event(content, not is_role, finish_reason, usage, is_reasoning)


def _delta_of(choice: dict[str, Any]) -> object:
    """Where its output stands: a message beside a delta only repeats, and other fields label it."""
    delta = choice.get("delta")
    return choice.get("message") or choice if delta is None else delta


def _require_no_error(choice: dict[str, Any], delta: object) -> None:
    """Raises what an error means in a choice, beside its output."""
    inner = delta.get("error") if isinstance(delta, dict) else None
    for error in (choice.get("error"), inner):
        if not is_no_error(error):
            raise failure_in_stream(error)


def _given_up(choice: dict[str, Any], finish_reason: str, usage: Usage | None) -> Event:
    """What the last event of a choice says that ends badly: its texts may be output, or the host's
    last words. Raises what an error means."""
    delta, text = _delta_of(choice), choice.get("text")
    _require_no_error(choice, delta)
    for words in (delta, choice.get("message")):
        if isinstance(words, str) and words:
            raise failure_in_stream(words)
    content, is_reasoning = (True, False) if text else _delta_output(delta)
    text = text or (delta.get("content") if isinstance(delta, dict) else "")
    told = [text, *words_beside(choice["finish_reason"])]
    said = ": ".join(each.strip() for each in told if isinstance(each, str) and each.strip())
    return Event(content, True, finish_reason, usage, is_reasoning, words=said)


def _delta_output(delta: object) -> tuple[bool, bool]:
    """Whether a delta brings output, and whether that is reasoning alone."""
    if not isinstance(delta, dict):
        return _brings_output(delta), False
    if delta.get("content") and isinstance(delta["content"], str):
        return True, False
    names = [name for name, value in delta.items() if _is_output(name) and _brings_output(value)]
    names = [name for name in names if name != "name"]  # of the author; else of a function
    return bool(names), bool(names) and all(_is_of_reasoning(name, delta) for name in names)


def _is_of_reasoning(name: str, delta: dict[str, Any]) -> bool:
    kinds = [name.lower()]
    if isinstance(delta[name], list):
        kinds = [str(part.get("type")) for part in delta[name] if isinstance(part, dict)] or kinds
    return all(any(word in kind for word in _REASONING) for kind in kinds)


@lru_cache(maxsize=256)
def _is_output(name: str) -> bool:
    return _LABEL.fullmatch(name.lower()) is None


def _brings_output(value: object) -> bool:
    """Whether there is a text anywhere in it, but for those that only label it."""
    if isinstance(value, dict):
        return _HIDDEN.search(str(value.get("type"))) is None and any(
            _is_output(name) and _brings_output(each) for name, each in value.items()
        )
    if isinstance(value, list):
        return any(map(_brings_output, value))
    return isinstance(value, str) and value != ""


def usage_of(event: dict[str, Any]) -> Usage | None:
    """The token counts that came with an event, or None."""
    usage = event.get("usage")
    if usage is None:
        usage = _elsewhere(event)
    if not isinstance(usage, dict):
        return None
    prompt = _prompt(usage)
    output = _told(usage, "completion_tokens", "output_tokens")
    return Usage(
        prompt_tokens=prompt,
        cached_tokens=_detail(usage, _PROMPT_DETAILS, *_CACHED),
        output_tokens=output,
        reasoning_tokens=_reasoning(usage, prompt, output),
    )


def _elsewhere(event: dict[str, Any]) -> object:
    """Counts that do not stand beside the choices: in one of them, or in a host's own field."""
    choices, groq = event.get("choices"), event.get("x_groq")
    if isinstance(choices, list) and len(choices) == 1 and isinstance(choices[0], dict):
        return choices[0].get("usage")
    return groq.get("usage") if isinstance(groq, dict) else None


def _prompt(usage: dict[str, Any]) -> int | None:
    if usage.get("prompt_tokens") is not None:
        return _told(usage, "prompt_tokens")
    told = _told(usage, "input_tokens")
    return None if told is None else told + sum(_told(usage, each) or 0 for each in _BESIDE_INPUT)


def _reasoning(usage: dict[str, Any], prompt: int | None, output: int | None) -> int:
    reasoning = _detail(usage, _OUTPUT_DETAILS, "reasoning_tokens", "thinking_tokens") or 0
    reasoning += _detail(usage, _OUTPUT_DETAILS, "rejected_prediction_tokens") or 0
    # Some hosts count it beside the completion, which only their total tells.
    is_beside = _told(usage, "total_tokens") == (prompt or 0) + (output or 0) + reasoning
    return 0 if is_beside else reasoning


def _detail(usage: dict[str, Any], places: tuple[str, ...], *names: str) -> int | None:
    """As `_told`, of the first of these places that tells it, else beside them."""
    for told in (*map(usage.get, places), usage):
        if isinstance(told, dict) and (count := _told(told, *names)) is not None:
            return count
    return None


def _told(counts: dict[str, Any], *names: str) -> int | None:
    """As `_count`, of the first of these that is there and not null; it may stand in quotes."""
    value = next((counts[name] for name in names if counts.get(name) is not None), None)
    if isinstance(value, str) and (integer := _INTEGER.fullmatch(value)) is not None:
        value = int(integer[1][:20])
    return _count(value)


def _count(value: object) -> int | None:
    """A token count, or None: a host that does not know must not look like one that says 0."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if type(value) is int and 0 <= value < MAX_TOKENS else None
