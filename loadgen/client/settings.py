"""What a client is told once: where, how and with which key it asks for completions."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import orjson

from loadgen.errors import UsageError

Endpoint = Literal["completions", "chat"]
API_KEY_VARIABLES = ("KVSWARM_API_KEY", "OPENAI_API_KEY")

_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_OUR_HEADERS = frozenset(
    {"accept-encoding", "connection", "content-length", "content-type", "transfer-encoding"}
)
_OUR_FIELDS = frozenset({"prompt", "messages", "stream", "n"})
LENGTH = "{max_tokens}"
"""In the texts of an extra body: the most tokens of this request's reply."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSettings:
    """How requests are made.

    `temperature` None leaves it to the host. `ignore_eos` and `continuous_usage` are vLLM's: set
    both only when the host is vLLM. With `continuous_usage` every event says how many tokens
    there are so far, so that a token without text (half a UTF-8 character) is seen on arrival and
    a cut-off reply still has its token counts. `extra_body` is merged into each request last, by
    `of_length`.
    `timeout_s` bounds a whole request, endless streams included; `connect_timeout_s` bounds
    opening a connection, name and TLS included. A request that the host rejects is tried again up
    to `retries` times within `timeout_s`. `session_header` names the one by which a router keeps
    requests together, empty: none is sent. Headers are secrets and not part of the repr.
    """

    url: str
    model: str
    endpoint: Endpoint = "completions"
    temperature: float | None = 0.0
    ignore_eos: bool = False
    continuous_usage: bool = False
    extra_body: Mapping[str, Any] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    timeout_s: float = 600.0
    connect_timeout_s: float = 10.0
    retries: int = 0
    session_header: str = ""


def auth_headers(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The Authorization header for the first API key in the environment, if there is one.

    Raises UsageError for a key that cannot be sent; the key is never part of a message.
    """
    for name in API_KEY_VARIABLES:
        key = environ.get(name, "").strip()
        if key and not (key.isascii() and key.isprintable()):
            raise UsageError(f"{name} holds characters no HTTP header can carry: set it again")
        if key:
            return {"Authorization": f"Bearer {key}"}
    return {}


def parse_header(text: str) -> tuple[str, str]:
    """`name: value` as (Name, value), in one spelling so that a later header replaces an earlier.

    Raises UsageError; values may be secrets and are not repeated.
    """
    name, colon, value = (part.strip() for part in text.partition(":"))
    if not colon or not _HEADER_NAME.fullmatch(name):
        raise UsageError('a header is not of the form "Name: value"')
    if name.lower() in _OUR_HEADERS:
        raise UsageError(f"header {name} is set by the client itself: leave it out")
    if not value.isprintable() or not value.isascii():
        raise UsageError(f"header {name} has a value that is not printable ASCII")
    return name.title(), value


def parse_header_name(text: str) -> str:
    """The name of a header that each request gives a value of its own. Raises UsageError."""
    return parse_header(f"{text}: value")[0]


def parse_extra_body(text: str) -> dict[str, Any]:
    """The JSON object of `--extra-body`.

    Raises UsageError, which repeats no key, when it is no object, or holds a field that decides
    what is measured.
    """
    try:
        body = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise UsageError(f"the extra body is not JSON: {error}") from None
    if not isinstance(body, dict):
        raise UsageError('the extra body is not a JSON object: write {"name": value}')
    check_fields(body)
    return body


def check_fields(body: Mapping[str, Any], called: str = "extra body") -> None:
    """Raise UsageError for one of `our_fields`."""
    for name in our_fields(body):
        raise UsageError(f"{called} sets {name!r}, which the client sets itself: leave it out")


def our_fields(body: Mapping[str, Any]) -> list[str]:
    """The fields of an extra body that decide what is measured, and are not for it to set."""
    return sorted(_OUR_FIELDS & body.keys())


def of_length(body: Mapping[str, Any], max_tokens: int) -> dict[str, Any]:
    """An extra body for a reply of that length: `{max_tokens}` in its texts is the number."""
    return {
        name: value.replace(LENGTH, str(max_tokens)) if isinstance(value, str) else value
        for name, value in body.items()
    }


def tells_length(body: Mapping[str, Any]) -> bool:
    """Whether an extra body has fields that depend on the length of the reply."""
    return any(isinstance(value, str) and LENGTH in value for value in body.values())
