"""A model's server, asked over HTTP, and what it said in one line."""

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import SplitResult, urlsplit

import aiohttp

from rag_store.documents import printable
from rag_store.errors import RagError, RagUsageError

Value = TypeVar("Value")

CONNECT_S = 10.0
_LATER = (408, 425, 429)


@dataclass(frozen=True, slots=True)
class Failures:
    """`final` is raised where asking again is in vain, else `later`; `if_slow` helps a timeout."""

    later: type[RagError]
    final: type[RagError]
    if_slow: str


def parsed_url(url: str, name: str, instead: str = "name its key's variable") -> SplitResult:
    """A server's url in parts; `instead` of a password do that. Raises RagUsageError."""
    if "@" in url:  # it would stand in every error that names the route
        raise RagUsageError(f"{name} holds a password: {instead}")
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port  # a port that is none raises
    except ValueError:
        host = None
    if not host or parts.scheme not in ("http", "https") or not url.isprintable() or " " in url:
        raise RagUsageError(f"{name} is {url!r}: give http://host:port")
    return parts


def open_session(key_env: str, timeout_s: float) -> aiohttp.ClientSession:
    """Connections to one server, with the key of the environment. Raises RagUsageError."""
    key = os.environ.get(key_env, "")
    if not (key.isascii() and key.isprintable()):
        raise RagUsageError(
            f"the key in {key_env} holds a line break or another character that is in no key:"
            " set it anew without"
        )
    timeout = aiohttp.ClientTimeout(total=timeout_s, sock_connect=CONNECT_S)
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    return aiohttp.ClientSession(timeout=timeout, headers=headers)


async def ask(
    session: aiohttp.ClientSession, route: str, body: Mapping[str, object], failures: Failures
) -> bytes:
    """The content of an answer with status 200. Raises as `failures` say."""
    try:
        async with session.post(route, json=body, allow_redirects=False) as response:
            status, content = response.status, await response.read()
    except aiohttp.ServerTimeoutError:
        told = f"cannot reach {route}: no connection in {CONNECT_S:g} s"
        raise failures.later(told) from None
    except TimeoutError:
        told = f"{route} has not answered in {session.timeout.total:g} s: {failures.if_slow}"
        raise failures.later(told) from None
    except (aiohttp.ClientError, OSError, ValueError) as error:
        raise failures.later(f"cannot reach {route}: {line_of(str(error))}") from error
    if status == 200:
        return content
    raise _error(route, status, content, failures)


def _error(route: str, status: int, content: bytes, failures: Failures) -> RagError:
    moved = "it sends elsewhere, and nothing is sent there: give the url that answers"
    told = moved if 300 <= status < 400 else _message_of(content)
    # 501 is what vLLM says of a model that cannot do what is asked.
    is_final = status == 501 or (300 <= status < 500 and status not in _LATER)
    kind = failures.final if is_final else failures.later
    return kind(f"{route} answered HTTP {status}: {told}")


def _message_of(answer: bytes) -> str:
    """The sentence of an error in OpenAI's form or in FastAPI's, else the start of the answer."""
    try:
        fields = json.loads(answer)
        told = fields.get("error", fields)
        said = told.get("message") or told.get("detail") if isinstance(told, dict) else told
    except (ValueError, AttributeError, RecursionError):
        said = None
    return line_of(str(said)) if said else line_of(answer) or "no message"


def of_each(
    answer: bytes, name: str, count: int, value: Callable[[dict[str, Any]], Value]
) -> list[Value] | None:
    """The value of each of `count` items that were sent, from the list `name` of the answer, whose
    items bear their `index`; None where not each is there once."""
    try:
        items: Any = json.loads(answer)[name]
        found = {each["index"]: value(each) for each in items}
        return [found[at] for at in range(count)] if len(items) == count else None
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None


def line_of(text: str | bytes) -> str:
    """Its start in one line that can be printed."""
    whole = text.decode("utf-8", "replace") if isinstance(text, bytes) else text
    line = " ".join(printable(whole).split())
    return line if len(line) <= 200 else f"{line[:200]}…"
