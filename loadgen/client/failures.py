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

import base64
import contextlib
import re
from collections.abc import Iterable, Iterator, Mapping
from html import unescape
from typing import Any, ClassVar
from urllib.parse import unquote

import orjson

from loadgen.record import Outcome

MAX_CHARS = 300
MIN_SECRET_CHARS, MIN_PART_CHARS = 6, 8
HIDDEN = "***"
_STRONG_WORDS, _WEAK_WORDS = (
    ("message", "detail", "msg", "statusmsg"),
    ("reason", "title", "failure"),
)
_INNER = ("data", "status", "baseresp", "response", "result", "body", "output", "meta", "header")
_ERRORS = ("error", *_STRONG_WORDS, "errormessage", "errormsg", "errors", "exception")
_WORDS = (_ERRORS, _WEAK_WORDS, _INNER)
"""Where a host puts its words: the first of these groups that has any."""
_MOST_DEEP = 8
_FAILED = re.compile(
    rb"(?i)error|fail(?!over|safe)|exception|\b(?:seg)?fault\b|abort|cancel|timed?[ _-]?out"
    rb"|overload|traceback|panic|killed|out of memory|unavailable|refused|denied|bad gateway"
    rb"|^\s*<(?:html|!doctype)"
)
_FAILING_NAME = re.compile(
    r"(?i)busy|crash|(?:^|[\W_])oom(?:$|[\W_])|out.?of.?memory|fatal|critical|dead|died|shut.?down"
    r"|terminated|reject|exhausted|exceeded|throttl|limited|disconnected|unhealthy|invalid|broken"
    r"|forbidden|unauthorized|(?:^|[\W_])(?:lost|down)$"
)
"""What only a name says of a failure, not the words of a text."""
_HARMLESS = re.compile(
    r"(?i)(?:^|[\W_])(?:ping|pong|heart_?beat|keep_?alive|info|debug|notice|warning|progress|queued?"
    r"|pending|running|waiting|processing|loading|start(?:ed)?|created|ok|success|succeeded|metadata"
    r"|status|message)(?:$|[\W_])|^(?:0|2\d\d)$"
)
_NOTHING = re.compile(r"(?i)\W*(?:ok(?:ay)?|succe\w+|none|null|nil|false|no.?errors?|0+|2\d\d)?\W*")
"""Texts that say of a failure that there is none."""
_FAILING_FIELD = re.compile("error|^err|exception|^fault|^fail(?!over|safe)|failure|^exc$|^abort")
_TITLE = re.compile(r"<title[^>]*>(.*?)</title>", re.IGNORECASE | re.DOTALL)
_KEY_NAME = re.compile(
    r"(?i)key|token|secret|pass(?:w|phrase|code)|auth|credential|cookie|bearer|signature|pwd|jwt"
    r"|headers$|(?:^|[\W_])(?:pass|pin|otp|sid|sig)$"
)
_COUNT_NAME = re.compile(r"(?i)tokens|(?:max|min|num|new)_?token|token_?(?:id|budget|limit|count)")
"""In names of numbers that sound like a key's and are counts."""
_IN_URL = re.compile(r"""(?P<before>://)[^/\s"']+(?=@)|(?P<name>[?&][\w.%-]+=)[^&\s"'#]+""")
_PARTS = re.compile(r"""[\s;,:="'{}\[\]()<>&|?.]+""")
_NAMES = re.compile(r"^[\w-]+(?=\s)|[A-Za-z_-]+=(?=[^\s=;,])")
"""In a header's value: what says how to read it, and the names of what it consists of."""
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
_CODES = ("code", "status", "statuscode", "httpcode", "httpstatus", "httpstatuscode", "errorcode")
_KINDS = ("object", "type", "event", "kind", "state", "status", "level", "outcome")
_SUCCESSES = ("ok", "success", "succeeded", "successful", "issuccess", "issuccessful")


def failure_of_status(status: int, words: str, retry_after: str = "") -> StreamFailure:
    """What an answer with another status than 200 means."""
    said = f"HTTP {status}: {words or 'no message'}"
    if status in REJECTIONS:
        return Rejected(said, retry_after)
    return TimedOut(said) if status in TIME_LIMITS else HttpError(said)


def failure_in_stream(error: object) -> StreamFailure:
    """What an error means that a host reports inside a stream, as `failure_in_ok`."""
    words = error_message(error).strip() or "no words"
    return failure_in_ok(error, f"error inside the stream: {words}")


def failure_in_ok(error: object, said: str, retry_after: str = "") -> StreamFailure:
    """What an error means that came with a 200: its code tells a rejection."""
    is_refusal = _code_of(error) in REJECTIONS
    return Rejected(said, retry_after) if is_refusal else Malformed(said)


def _code_of(error: object, depth: int = _MOST_DEEP) -> int | None:
    if not isinstance(error, Mapping) or not depth:
        return None
    fields = _fields(error)
    codes = (_number(fields.get(name)) for name in _CODES)
    inner = (_code_of(fields.get(name), depth - 1) for group in _WORDS for name in group)
    return next((code for code in (*codes, *inner) if code is not None), None)


def _number(value: object) -> int | None:
    if isinstance(value, str) and value.isdecimal():
        value = int(value[:9])  # longer ones are no code of HTTP
    return value if type(value) is int else None


def _fields(event: Mapping[str, Any]) -> dict[str, Any]:
    """Those that say something, by their names in small letters without what parts words."""
    told = ((name, value) for name, value in event.items() if value is not None)
    return {name.lower().replace("_", "").replace("-", ""): value for name, value in told}


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


def error_message(error: object, depth: int = _MOST_DEEP) -> str:
    """The messages inside a decoded error, however deep the host put them."""
    if isinstance(error, Mapping) and depth:
        fields = _fields(error)
        for group in _WORDS:
            said = [fields[name] for name in group if fields.get(name) and fields[name] is not True]
            if group is _INNER:
                said = [each for each in said if isinstance(each, Mapping)]
            if said:
                return ": ".join(dict.fromkeys(error_message(each, depth - 1) for each in said))
    return error if isinstance(error, str) else _as_json(error)


def _as_json(value: object) -> str:
    try:
        return orjson.dumps(value).decode()
    except orjson.JSONEncodeError:
        return "an error of too many levels"


def names_failure(text: bytes) -> bool:
    """Whether a line, of no known form, speaks of a failure."""
    return _FAILED.search(text) is not None


def is_failing_name(name: str) -> bool:
    """Whether the name of an event, a state or a code is one of a failure."""
    return names_failure(name.encode("utf-8", "replace")) or bool(_FAILING_NAME.search(name))


def is_no_error(error: object, depth: int = _MOST_DEEP) -> bool:
    """Whether what stands for an error says that there is none: nothing, 0, an object of these."""
    if isinstance(error, Mapping):
        fields = _fields(error)
        is_told = any(fields.get(name) in (False, "false") for name in _SUCCESSES)
        is_none = depth > 0 and all(is_no_error(each, depth - 1) for each in fields.values())
        return is_none and not is_told
    said = str(error)
    return not error or (any(map(str.isalnum, said)) and _NOTHING.fullmatch(said) is not None)


def tells_failure(
    event: Mapping[str, Any], is_reply: bool | None = None, depth: int = _MOST_DEEP
) -> bool:
    """Whether a JSON object, of a stream or alone, says that the host has failed. With output or
    usage, which `is_reply` tells of what stands beside them, words alone do not."""
    is_error = not is_no_error(event.get("error"))
    if is_error or not depth:
        return is_error
    if is_reply is None:
        is_reply = bool(event.get("choices")) or isinstance(event.get("usage"), dict)
    fields = _fields(event)
    if any(_is_failure(name, value, is_reply, depth) for name, value in fields.items()):
        return not _NOTHING.fullmatch(str(fields.get("message") or fields.get("msg") or "x"))
    return not is_reply and _speaks_of_failure(event)


def _is_failure(name: str, value: object, is_reply: bool, depth: int) -> bool:
    """Whether a field by itself says so, whatever stands beside it."""
    if (name in _KINDS or name in _CODES) and (
        (isinstance(value, str) and is_failing_name(value)) or not 0 <= (_number(value) or 0) < 400
    ):
        return True
    if name in _SUCCESSES:
        return value in (False, "false")
    if isinstance(value, Mapping) and (name in _INNER or name == "xgroq"):
        is_answer = not is_reply and name in ("status", "response", "result")
        has_words = is_answer or name == "baseresp"
        return tells_failure(value, not has_words, depth - 1)
    return not is_no_error(value) and _FAILING_FIELD.search(name) is not None


def is_harmless(event: Mapping[str, Any]) -> bool:
    """Whether an object calls itself a ping, a note or a success."""
    fields = _fields(event)
    told = (fields.get(name) for name in (*_KINDS, *_CODES))
    return any(fields.get(name) is True for name in _SUCCESSES) or any(
        isinstance(each, str | int) and _HARMLESS.search(str(each)) for each in told
    )


def _speaks_of_failure(event: Mapping[str, Any]) -> bool:
    """Whether an object without output or usage does: by words, of which a ping has some too."""
    fields = _fields(event)
    said = " ".join(str(fields[name]) for name in _STRONG_WORDS if fields.get(name))
    if is_harmless(event):
        return names_failure(said.encode("utf-8", "replace"))
    return _NOTHING.fullmatch(said) is None or is_failing_name(str(fields.get("reason") or ""))


def secrets_of(headers: Mapping[str, str], body: Any = None) -> tuple[str, ...]:
    """What must not be repeated, the longest first: the headers' values and what they consist of,
    such as bearer keys, and what in a request's body is called a key."""
    found = [part for value in headers.values() for part in _header_parts(value)]
    with_keys_hidden(body, found)
    secrets = {each for each in found if len(each) >= MIN_SECRET_CHARS}
    return tuple(sorted(secrets, key=len, reverse=True))


def _header_parts(value: str) -> Iterator[str]:
    scheme, _, last = value.rpartition(" ")
    yield from (value, last)
    if scheme.strip().lower() == "basic":
        with contextlib.suppress(ValueError):
            value = base64.b64decode(last, validate=True).decode()
            yield from (value, value.partition(":")[2])
    parts = _PARTS.split(_NAMES.sub(" ", value))
    yield from (part for part in parts if len(part) >= MIN_PART_CHARS)


def with_keys_hidden(value: Any, found: list[str], texts: bool = False, all_: bool = False) -> Any:
    """A JSON value with `***` for what it calls a key, which is added to `found`: numbers too,
    where the name is not one of counts."""
    if isinstance(value, Mapping):
        hidden = {}
        for name, each in value.items():
            is_key = _KEY_NAME.search(name) is not None
            is_any = all_ or _is_key(name)
            hidden[name] = with_keys_hidden(each, found, texts or is_key, is_any)
        return hidden
    if isinstance(value, list):
        return [with_keys_hidden(each, found, texts, all_) for each in value]
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if (all_ and is_number) or (texts and isinstance(value, str) and value):
        found.append(str(value))
        return HIDDEN
    return with_urls_hidden(value, found) if isinstance(value, str) else value


def with_urls_hidden(text: str, found: list[str]) -> str:
    """A text with `***` for who asks, and with what keys, in its URLs, added to `found`."""

    def hide(match: re.Match[str]) -> str:
        name = match["name"] or ""
        if name and not _is_key(name.strip("?&=")):
            return match[0]
        before = match["before"] or name
        secret = match[0].removeprefix(before)
        found.extend((secret, secret.partition(":")[2]))
        return f"{before}{HIDDEN}"

    return _IN_URL.sub(hide, text)


def _is_key(name: str) -> bool:
    return _KEY_NAME.search(name) is not None and _COUNT_NAME.search(name) is None


def redacted(text: str, secrets: Iterable[str]) -> str:
    """`text` with every secret replaced by `***`; no text that has one as URLs, HTML or JSON do."""
    for secret in secrets:
        text = text.replace(secret, HIDDEN)
    bare = _bare(text)
    return ESCAPED_KEY if any(_bare(secret) in bare for secret in secrets) else text


def _bare(text: str) -> str:
    """What is left of `text` without escapes, case and breaks of its lines."""
    text = _JSON_ESCAPE.sub(lambda found: chr(int(found[1], 16)), text)
    return _BREAKS.sub("", unescape(unquote(text))).casefold()
