"""A model's server, asked over HTTP, and what it said in one line."""

import json
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import aiohttp

from rag_store.errors import RagError, RagUsageError

CONNECT_S = 10.0
_LATER = (408, 425, 429)


def check_url(url: str, name: str) -> None:
    """Raises RagUsageError, in which `name` says whose url it is, where no server can have it."""
    if "@" in url:  # it would stand in every error that names the route
        raise RagUsageError(f"{name} holds a password: name its key's variable")
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port  # a port that is none raises
    except ValueError:
        host = None
    if not host or parts.scheme not in ("http", "https") or not url.isprintable() or " " in url:
        raise RagUsageError(f"{name} is {url!r}: give http://host:port")


@asynccontextmanager
async def open_session(key_env: str, timeout_s: float) -> AsyncIterator[aiohttp.ClientSession]:
    """Connections to one server; its key, if any, is read from the environment.

    Raises RagUsageError where no header can hold the key.
    """
    key = os.environ.get(key_env, "")
    if not (key.isascii() and key.isprintable()):
        raise RagUsageError(
            f"the key in {key_env} holds a line break or another character that is in no key:"
            " set it anew without"
        )
    timeout = aiohttp.ClientTimeout(total=timeout_s, sock_connect=CONNECT_S)
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    async with aiohttp.ClientSession(timeout=timeout, headers=headers) as session:
        yield session


async def post(
    session: aiohttp.ClientSession,
    route: str,
    body: Mapping[str, object],
    fails: type[RagError],
    if_slow: str,
) -> tuple[int, bytes]:
    """Status and content. Raises `fails`; `if_slow` says what helps against a timeout."""
    try:
        async with session.post(route, json=body, allow_redirects=False) as response:
            return response.status, await response.read()
    except aiohttp.ServerTimeoutError:
        raise fails(f"cannot reach {route}: no connection in {CONNECT_S:g} s") from None
    except TimeoutError:
        waited_s = session.timeout.total
        raise fails(f"{route} has not answered in {waited_s:g} s: {if_slow}") from None
    except (aiohttp.ClientError, OSError, ValueError) as error:
        raise fails(f"cannot reach {route}: {line_of(str(error))}") from error


def accepted(
    route: str, reply: tuple[int, bytes], later: type[RagError], final: type[RagError]
) -> bytes:
    """The content of a reply of `post`.

    Raises, unless its status is 200, `final` where asking again is in vain, and else `later`.
    """
    status, content = reply
    if status == 200:
        return content
    moved = "it sends elsewhere, and nothing is sent there: give the url that answers"
    told = moved if 300 <= status < 400 else message_of(content)
    fails = final if is_final(status) else later
    raise fails(f"{route} answered HTTP {status}: {told}")


def is_final(status: int) -> bool:
    """Whether asking again is in vain; 501 is vLLM's for a model that cannot do what is asked."""
    return status == 501 or (300 <= status < 500 and status not in _LATER)


def message_of(answer: bytes) -> str:
    """The sentence of an error in OpenAI's form or in FastAPI's, else the start of the answer."""
    try:
        fields = json.loads(answer)
        told = fields.get("error", fields)
        said = told.get("message") or told.get("detail") if isinstance(told, dict) else told
    except (ValueError, AttributeError, RecursionError):
        said = None
    return line_of(str(said)) if said else line_of(answer) or "no message"


def line_of(text: str | bytes) -> str:
    """Its start in one line that can be printed."""
    whole = text.decode("utf-8", "replace") if isinstance(text, bytes) else text
    line = " ".join("".join(each if each.isprintable() else " " for each in whole).split())
    return line if len(line) <= 200 else f"{line[:200]}…"
