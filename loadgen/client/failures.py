"""Why a reply did not become a success, as one tree; each class carries the record's outcome.

StreamFailure
├── ConnectFailed   connect_error  no answer at all: name, refusal, TLS, reset before the headers
├── HttpError       http_error     an answer whose status is not 200
├── Rejected        rejected       the host takes no more now: 429 or 503, or such a code in a 200
├── TimedOut        timeout        no answer in the time there was, ours or a proxy's (408, 504)
├── Truncated       truncated      a 200 that ended, or was cut, before it was complete
└── Malformed       malformed      a 200 that is no completion stream, or reports an error in it

What a host said is made safe for one line of a table. Texts are bounded by `one_line` only after
`redacted`: a cut through a key would leave half of it.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from html import unescape
from typing import Any, ClassVar
from urllib.parse import unquote

import orjson

from loadgen.record import Outcome

MAX_CHARS = 300
MIN_SECRET_CHARS = 6
_WORDS = ("error", "message", "detail", "msg", "error_message", "error_msg", "errors")
_FAILED = re.compile(
    rb"error|fail|exception|\b(?:seg)?fault\b|abort|cancel|timed?[ _-]?out|overload|traceback"
    rb"|panic|killed|out of memory|unavailable|refused|denied|bad gateway|^\s*<(?:html|!doctype)",
    re.IGNORECASE,
)
_TITLE = re.compile(r"<title[^>]*>(.*?)</title>", re.IGNORECASE | re.DOTALL)
KEY_NAME = re.compile(
    r"key|token|secret|passw|auth|credential|cookie|bearer|signature", re.IGNORECASE
)
_TAG = re.compile(r"<[^>]*>")
_JSON_ESCAPE = re.compile(r"\\u([0-9a-fA-F]{4})")
_BREAKS = re.compile(r"[\s\u200b+\\]")
ESCAPED_KEY = "the host's words repeat a key or a header's value in another spelling: left out"


class StreamFailure(Exception):
    """Base of all; `str(failure)` says in one line what was seen."""

    outcome: ClassVar[Outcome]


class ConnectFailed(StreamFailure):
    """The host could not be reached or hung up before any header. `is_own` says that the reason
    lies on this side: no descriptor or port was left."""

    is_own = False

    outcome = "connect_error"


class HttpError(StreamFailure):
    """The host answered with another status than 200."""

    outcome = "http_error"


class Rejected(StreamFailure):
    """The host takes no more now; `retry_after` is its header of that name, empty without one."""

    outcome = "rejected"

    def __init__(self, words: str, retry_after: str = "") -> None:
        super().__init__(words)
        self.retry_after = retry_after


class TimedOut(StreamFailure):
    """There was no complete answer in time."""

    outcome = "timeout"


class Truncated(StreamFailure):
    """The reply ended or the connection broke before the reply was complete."""

    outcome = "truncated"


class Malformed(StreamFailure):
    """The reply is no OpenAI completion stream."""

    outcome = "malformed"


REJECTIONS, TIME_LIMITS = (429, 503), (408, 504)
"""Status codes (RFC 9110, RFC 6585) by which a host sheds load, and by which one between gives up
waiting."""
_CODES = ("code", "status", "status_code", "statuscode")


def failure_of_status(status: int, words: str, retry_after: str = "") -> StreamFailure:
    """What an answer with another status than 200 means."""
    said = f"HTTP {status}: {words or 'no message'}"
    if status in REJECTIONS:
        return Rejected(said, retry_after)
    return TimedOut(said) if status in TIME_LIMITS else HttpError(said)


def failure_in_stream(error: object) -> StreamFailure:
    """What an error means that a host reports inside a 200: its code tells a rejection."""
    words = error_message(error).strip() or "no words"
    said = f"error inside the stream: {words}"
    return Rejected(said) if _code_of(error) in REJECTIONS else Malformed(said)


def _code_of(error: object, depth: int = 8) -> int | None:
    if not isinstance(error, Mapping) or not depth:
        return None
    for name in _CODES:
        value = error.get(name)
        if isinstance(value, str) and value.isdecimal():
            value = int(value[:9])  # longer ones are no code of HTTP
        if type(value) is int:
            return value
    found = (_code_of(error.get(key), depth - 1) for key in _WORDS)
    return next((code for code in found if code is not None), None)


def one_line(text: str, max_chars: int = MAX_CHARS) -> str:
    """`text` without line breaks or control characters, at most `max_chars` long."""
    line = " ".join(text[: 8 * max_chars].split())
    line = "".join(char if char.isprintable() else "?" for char in line)
    return line if len(line) <= max_chars else line[: max_chars - 1] + "…"


def excerpt(payload: bytes) -> str:
    """Unexpected bytes in an error text; not cut here, as they may hold a key."""
    return payload.decode("utf-8", "replace")


def host_message(body: bytes) -> str:
    """The host's own words in an error body: OpenAI or FastAPI shape, HTML title, plain text."""
    text = body.decode("utf-8", "replace")
    try:
        return error_message(orjson.loads(body))
    except orjson.JSONDecodeError:
        title = _TITLE.search(text)
        return title[1] if title else _TAG.sub(" ", text)


def error_message(error: object, depth: int = 8) -> str:
    """The messages inside a decoded error, however deep the host put them."""
    if isinstance(error, Mapping) and depth:
        said = [error[key] for key in _WORDS if error.get(key) and error[key] is not True]
        if said:
            return ": ".join(dict.fromkeys(error_message(each, depth - 1) for each in said))
    return error if isinstance(error, str) else _as_json(error)


def _as_json(value: object) -> str:
    try:
        return orjson.dumps(value).decode()
    except orjson.JSONEncodeError:
        return "an error of too many levels"


def names_failure(text: bytes) -> bool:
    """Whether a name or a line, of no known form, speaks of a failure."""
    return _FAILED.search(text) is not None


def tells_failure(event: Mapping[str, Any]) -> bool:
    """Whether a JSON object, of a stream or alone, says that the host has failed."""
    if event.get("error"):
        return True
    if event.get("choices") or isinstance(event.get("usage"), dict):
        groq = event.get("x_groq")
        return isinstance(groq, Mapping) and bool(groq.get("error"))
    return any(event.get(key) for key in _WORDS) or any(
        _is_failure(name, value) for name, value in event.items()
    )


def _is_failure(name: str, value: object) -> bool:
    """Whether a field of an object that brings neither output nor usage says so."""
    name = name.lower()
    if name in ("object", "type", "status"):
        is_named = isinstance(value, str) and names_failure(value.encode("utf-8", "replace"))
        return is_named or _is_error_status(value)
    if name in ("code", "statuscode", "status_code"):
        return _is_error_status(value)
    if name == "success":
        return value is False
    if isinstance(value, Mapping) and ("resp" in name or name == "result"):
        return tells_failure(value)
    return name.startswith(("err", "exception", "fault")) and bool(value)


def _is_error_status(value: object) -> bool:
    return type(value) is int and value >= 400


def secrets_of(headers: Mapping[str, str], body: Any = None) -> tuple[str, ...]:
    """What must not be repeated: the headers' values, and their last words such as bearer keys,
    and the texts of a request's body that are called keys."""
    values = [part for value in headers.values() for part in (value, value.rpartition(" ")[2])]
    return tuple(v for v in (*values, *_keys_in(body)) if len(v) >= MIN_SECRET_CHARS)


def _keys_in(value: Any, is_key: bool = False) -> Iterator[str]:
    if isinstance(value, str) and is_key:
        yield value
    elif isinstance(value, Mapping):
        for name, each in value.items():
            yield from _keys_in(each, is_key or KEY_NAME.search(name) is not None)
    elif isinstance(value, list):
        for each in value:
            yield from _keys_in(each, is_key)


def redacted(text: str, secrets: Iterable[str]) -> str:
    """`text` with every secret replaced by `***`; no text that has one as URLs, HTML or JSON do."""
    for secret in secrets:
        text = text.replace(secret, "***")
    bare = _bare(text)
    return ESCAPED_KEY if any(_bare(secret) in bare for secret in secrets) else text


def _bare(text: str) -> str:
    """What is left of `text` without escapes, case and breaks of its lines."""
    text = _JSON_ESCAPE.sub(lambda found: chr(int(found[1], 16)), text)
    return _BREAKS.sub("", unescape(unquote(text))).casefold()
