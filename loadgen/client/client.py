"""Streams one completion after another and says truthfully what became of each."""

import asyncio
import contextlib
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from loadgen.client.exchange import Exchange
from loadgen.client.failures import HttpError, Malformed, StreamFailure, Truncated
from loadgen.client.fault_text import host_message, one_line, redacted, secrets_of
from loadgen.client.list_exchange import ListExchange
from loadgen.client.protocol import DONE, ROUTES, request_body
from loadgen.client.settings import ClientSettings
from loadgen.client.sse import EventStream
from loadgen.client.transport import AiohttpTransport, Reply, Transport
from loadgen.client.url import base_url
from loadgen.record import Outcome

LINGER_S = 1.0
"""How long after `[DONE]` the end of the body may take before the connection is dropped."""

MAX_ERROR_BODY_BYTES = 65_536


class StreamingClient:
    """A client of one host, for any number of requests at once on one event loop.

    Outcomes it tells apart:

    - ok: a finish reason, and the closing usage or `[DONE]`. What happens to the connection, the
      clock or the task after that changes nothing. Without output it is ok and has no TTFT.
    - http_error: any status but 200, redirects included, with the host's message.
    - timeout: `timeout_s` is over, wherever the request was by then.
    - truncated: a 200 that ended or broke without being complete, or that the engine aborted.
    - connect_error: no status line: unknown name, refusal, TLS, reset, connection timeout.
    - cancelled: the task was cancelled before the reply was complete.
    - malformed: no event stream, bad SSE, bad JSON, or an error object inside a 200.
    """

    def __init__(self, settings: ClientSettings, transport: Transport | None = None) -> None:
        self._settings = settings
        self._stack = contextlib.AsyncExitStack()
        self._transport = transport
        self._secrets = secrets_of(settings.headers)

    async def __aenter__(self) -> Self:
        if self._transport is None:
            settings = self._settings
            url = base_url(settings.url) + ROUTES[settings.endpoint]
            self._transport = await self._stack.enter_async_context(
                AiohttpTransport(url, settings.headers, settings.connect_timeout_s)
            )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def stream(
        self,
        prompt: str | Sequence[str],
        max_tokens: int,
        exchange: Exchange | ListExchange,
        body_extra: Mapping[str, Any] | None = None,
        spent_s: float = 0.0,
    ) -> None:
        """Send one request and fill `exchange` while its reply arrives.

        A list of prompts is one call; its replies go to a ListExchange of as many members.
        `spent_s` is what the request has already used of its time.
        Raises nothing but CancelledError, and that only after the exchange is settled.
        """
        try:
            async with asyncio.timeout(self._settings.timeout_s - spent_s):
                await self._converse(
                    request_body(self._settings, prompt, max_tokens, body_extra), exchange
                )
        except asyncio.CancelledError:
            self._settle(exchange, "cancelled", "cancelled before the reply was complete")
            raise
        except TimeoutError:
            limit = f"no complete reply within {self._settings.timeout_s:g} s"
            self._settle(exchange, "timeout", limit)
        except StreamFailure as failure:
            self._settle(exchange, failure.outcome, str(failure))
        except Exception as error:
            self._settle(exchange, "malformed", _fault(error))

    async def _converse(self, body: bytes, exchange: Exchange | ListExchange) -> None:
        if self._transport is None:
            raise RuntimeError("StreamingClient is not open: use `async with`")
        exchange.sent_at = time.perf_counter()
        reply = await self._transport.post(body)
        try:
            exchange.status = reply.status
            await _require_stream(reply)
            await _receive(reply, exchange)
        finally:
            reply.close()
        if not exchange.complete:
            raise Truncated(exchange.lack)
        exchange.outcome = "ok"

    def _settle(self, exchange: Exchange | ListExchange, outcome: Outcome, error: str) -> None:
        # A complete reply stays one, whatever ends the wait for its last bytes.
        if exchange.complete and outcome != "malformed":
            exchange.outcome = "ok"
            return
        exchange.outcome = outcome
        exchange.error = one_line(redacted(error, self._secrets))
        exchange.end_at = time.perf_counter()


async def _receive(reply: Reply, exchange: Exchange | ListExchange) -> None:
    """Read events until `[DONE]` or the end of the body."""
    events = EventStream()
    while True:
        received_at, chunk = await reply.read()
        if not chunk:
            break
        for payload in events.feed(chunk):
            if payload == DONE:
                exchange.close(received_at)
                await _drain(reply)
                return
            exchange.take(payload, received_at)


async def _drain(reply: Reply) -> None:
    """Read the rest, normally nothing, because only then the connection can be used again."""
    with contextlib.suppress(TimeoutError, Truncated):
        async with asyncio.timeout(LINGER_S):
            while (await reply.read())[1]:
                pass


async def _require_stream(reply: Reply) -> None:
    if reply.status != 200:
        message = host_message(await _error_body(reply))
        raise HttpError(f"HTTP {reply.status}: {message or 'no message'}")
    if not reply.content_type.lower().startswith("text/event-stream"):
        raise Malformed(
            f"not an event stream but {reply.content_type or 'no content type'}: "
            "does a proxy drop `stream`?"
        )


async def _error_body(reply: Reply) -> bytes:
    body = bytearray()
    with contextlib.suppress(Truncated):
        while len(body) < MAX_ERROR_BODY_BYTES:
            _, chunk = await reply.read()
            if not chunk:
                break
            body += chunk
    return bytes(body)


def _fault(error: Exception) -> str:
    """A fault of ours and its place; not logged, as this loop's thread may share no lock."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"fault in the client: {error!r} at {Path(frame.filename).name}:{frame.lineno}"
