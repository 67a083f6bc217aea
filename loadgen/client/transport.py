"""The seam to the wire: one method that posts a body, and its reply as timed chunks."""

import asyncio
import errno
import ssl
import time
from collections.abc import Mapping
from typing import Protocol, Self

import aiohttp
from yarl import URL

from loadgen.client.failures import ConnectFailed, Malformed, StreamFailure, Truncated
from loadgen.client.fault_text import one_line

KEEPALIVE_S = 4.0
"""Shorter than the 5 s after which uvicorn, and so vLLM, hangs up: a request must not race it."""


class Reply(Protocol):
    """A reply whose status and headers are there."""

    status: int
    content_type: str

    async def read(self) -> tuple[float, bytes]:
        """The next bytes and their arrival in `time.perf_counter()` seconds; b"" at the end.

        The time is taken before anything is parsed. Raises Truncated when the connection breaks.
        """

    def close(self) -> None:
        """Give the connection back, or drop it when the reply was not read to its end."""


class Transport(Protocol):
    """Posts JSON bodies to one address."""

    async def post(self, body: bytes) -> Reply:
        """Send `body` and wait for the headers. Raises ConnectFailed, or Malformed for no HTTP."""


class AiohttpTransport:
    """The seam on aiohttp: kept-alive connections, as many as there are requests at once."""

    def __init__(self, url: str, headers: Mapping[str, str], connect_timeout_s: float) -> None:
        self._url = URL(url)
        self._headers = {
            "Accept": "text/event-stream",
            "Accept-Encoding": "identity",
            "Content-Type": "application/json",
            **headers,
        }
        self._connect_timeout_s = connect_timeout_s
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=0, keepalive_timeout=KEEPALIVE_S, resolver=aiohttp.ThreadedResolver()
            ),
            headers=self._headers,
            # Only opening a connection has a timer here: the client bounds the whole request.
            timeout=aiohttp.ClientTimeout(total=None, connect=self._connect_timeout_s),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def post(self, body: bytes) -> "AiohttpReply":
        """Send `body`; redirects are not followed. Raises ConnectFailed or Malformed."""
        if self._session is None:
            raise RuntimeError("AiohttpTransport is not open: use `async with`")
        try:
            response = await self._session.post(self._url, data=body, allow_redirects=False)
        except (aiohttp.ClientError, OSError) as error:
            raise self._failure(error) from error
        return AiohttpReply(response)

    def _failure(self, error: Exception) -> StreamFailure:
        host = f"{self._url.host_subcomponent}:{self._url.port}"
        if isinstance(error, aiohttp.ClientResponseError):
            return Malformed(f"{host} does not speak HTTP")
        return ConnectFailed(describe_connect_error(error, host))


class AiohttpReply:
    """A reply read from aiohttp as soon as its loop hands the bytes over."""

    __slots__ = ("_readany", "_response", "content_type", "status")

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response
        self._readany = response.content.readany
        self.status = response.status
        self.content_type = response.headers.get("Content-Type", "")

    @property
    def retry_after(self) -> str:
        """When to come again, in the host's words; empty where it does not say."""
        return self._response.headers.get("Retry-After", "")

    async def read(self) -> tuple[float, bytes]:
        """See Reply."""
        try:
            chunk = await self._readany()
            return time.perf_counter(), chunk
        except (aiohttp.ClientError, OSError) as error:
            raise Truncated("the connection broke in the middle of the reply") from error

    def close(self) -> None:
        """See Reply."""
        self._response.close()


def describe_connect_error(error: Exception, host: str) -> str:
    """Why `host` could not be asked, in one line."""
    cause = getattr(error, "os_error", None) or error
    match error:
        case aiohttp.ClientConnectorDNSError():
            return f"host name {host.split(':')[0]} is unknown"
        case aiohttp.ClientSSLError():
            return f"TLS with {host} failed: {one_line(_tls_reason(cause))}"
        case asyncio.TimeoutError():
            return f"{host} did not answer in time"
        case aiohttp.ServerDisconnectedError():
            return f"{host} closed the connection before it answered"
    number = getattr(cause, "errno", None)
    if number == errno.ECONNREFUSED:
        return f"{host} refused the connection"
    if number in (errno.ECONNRESET, errno.EPIPE):
        return f"{host} reset the connection before it answered"
    return f"no connection to {host}: {one_line(str(cause)) or type(cause).__name__}"


def _tls_reason(cause: object) -> str:
    if isinstance(cause, ssl.SSLCertVerificationError):
        return cause.verify_message
    return getattr(cause, "reason", None) or str(cause)
