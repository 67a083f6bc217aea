"""The seam on aiohttp, for what the wire transport does not do."""

import asyncio
import contextlib
import math
import time
from collections.abc import Mapping
from typing import Self

import aiohttp
from yarl import URL

from loadgen.client.failures import ConnectFailed, Malformed, StreamFailure, Truncated
from loadgen.client.transport import (
    BROKEN_BODY,
    KEEPALIVE_S,
    LINGER_S,
    RACE_S,
    Head,
    Sink,
    describe_connect_error,
    request_headers,
    tls_context,
)

_HUNG_UP = (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError)


class AiohttpTransport:
    """Kept-alive connections, as many as there are requests at once."""

    def __init__(self, url: str, headers: Mapping[str, str], connect_timeout_s: float) -> None:
        """Raises UsageError for a header that cannot be sent."""
        self._url = URL(url)
        self._headers = request_headers(self._url.host_port_subcomponent or "", headers)
        self._connect_timeout_s = connect_timeout_s
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=0,
                keepalive_timeout=KEEPALIVE_S,
                resolver=aiohttp.ThreadedResolver(),
                ssl=tls_context() if self._url.scheme == "https" else True,
            ),
            headers=self._headers,
            # Only opening a connection has a timer here: `post` bounds the whole request.
            timeout=aiohttp.ClientTimeout(total=None, connect=self._connect_timeout_s),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            trace_configs=[_reuse_noted()],
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def warm(self, connections: int) -> None:
        """aiohttp opens no connection ahead of its request."""

    async def post(self, body: bytes, sink: Sink, timeout_s: float = math.inf) -> None:
        """See Transport."""
        async with asyncio.timeout(timeout_s if timeout_s < math.inf else None):
            response = await self._respond(body, sink)
            try:
                sink.begin(_head(response))
                await _read(response.content, sink)
            finally:
                response.close()

    async def _respond(self, body: bytes, sink: Sink) -> aiohttp.ClientResponse:
        """The reply's headers; once more where a kept connection turned out to be closed."""
        reused: list[bool] = []
        asked_at = time.perf_counter()
        try:
            try:
                return await self._send(body, reused)
            except _HUNG_UP:
                if not reused or time.perf_counter() - asked_at > RACE_S:
                    raise
            sink.resend()
            return await self._send(body, reused)
        except (aiohttp.ClientError, OSError) as error:
            raise self._failure(error) from error

    async def _send(self, body: bytes, reused: list[bool]) -> aiohttp.ClientResponse:
        if self._session is None:
            raise RuntimeError("AiohttpTransport is not open: use `async with`")
        return await self._session.post(
            self._url, data=body, allow_redirects=False, trace_request_ctx=reused
        )

    def _failure(self, error: Exception) -> StreamFailure:
        host = f"{self._url.host_subcomponent}:{self._url.port}"
        if isinstance(error, aiohttp.ClientResponseError):
            return Malformed(f"{host} does not speak HTTP")
        if isinstance(error, aiohttp.ServerDisconnectedError):
            return ConnectFailed(describe_connect_error(EOFError(), host))
        return ConnectFailed(describe_connect_error(error, host))


def _reuse_noted() -> aiohttp.TraceConfig:
    """Notes in the list that a request brings along that it got a kept connection."""

    async def note(_: object, context: object, __: object) -> None:
        context.trace_request_ctx.append(True)  # type: ignore[attr-defined]

    trace = aiohttp.TraceConfig()
    trace.on_connection_reuseconn.append(note)
    return trace


def _head(response: aiohttp.ClientResponse) -> Head:
    headers = response.headers
    names = ("Content-Type", "Retry-After", "Content-Encoding", "Location")
    return Head(response.status, *(headers.get(name, "") for name in names))


async def _read(content: aiohttp.StreamReader, sink: Sink) -> None:
    while chunk := await _next(content):
        if sink.feed(chunk, time.perf_counter()):
            with contextlib.suppress(TimeoutError, Truncated):
                async with asyncio.timeout(LINGER_S):
                    while await _next(content):
                        pass
            return


async def _next(content: aiohttp.StreamReader) -> bytes:
    try:
        return await content.readany()
    except (aiohttp.ClientError, OSError) as error:
        raise Truncated(BROKEN_BODY) from error
