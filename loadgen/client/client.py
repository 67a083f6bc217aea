"""Streams one completion after another and says truthfully what became of each."""

import asyncio
import contextlib
import math
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import orjson

from loadgen.client.exchange import Exchange, ListExchange
from loadgen.client.failures import (
    HttpError,
    Malformed,
    StreamFailure,
    Truncated,
    error_message,
    host_message,
    one_line,
    redacted,
    secrets_of,
    tells_failure,
)
from loadgen.client.host import base_url
from loadgen.client.protocol import (
    DONE,
    REASONING,
    ROUTES,
    TOKEN,
    interpret,
    is_done,
    request_body,
    require_no_failure,
)
from loadgen.client.settings import ClientSettings
from loadgen.client.sse import EventStream
from loadgen.client.token_shape import RunningShape, TokenShape
from loadgen.client.transport import BROKEN_BODY, LINGER_S, Head, Transport
from loadgen.client.wire import WireTransport
from loadgen.record import Outcome

MAX_ERROR_BODY_BYTES = 65_536
MAX_SINGLE_EVENTS = 4


class ReplySink:
    """The sink of a completion's reply; raises Malformed and HttpError into the transport."""

    __slots__ = (
        "_events",
        "_exchange",
        "_head",
        "_last_words_s",
        "_other_body",
        "_running",
        "_shape",
        "_single",
        "is_done",
        "patience_s",
    )

    def __init__(self, exchange: Exchange | ListExchange, last_words_s: float = LINGER_S) -> None:
        """`last_words_s` is how long `[DONE]` may take behind a reply that is complete."""
        self._exchange = exchange
        self._last_words_s, self.patience_s, self.is_done = last_words_s, math.inf, False
        self._events = EventStream()
        self._shape = TokenShape()
        self._running = RunningShape()
        # The replies to a list take turns, and who reads texts wants each event.
        self._single = exchange if type(exchange) is Exchange else None
        self._head = Head(200)
        self._other_body: bytearray | None = None

    def resend(self) -> None:
        """See Sink."""
        self._exchange.resends += 1

    def begin(self, head: Head) -> None:
        """See Sink."""
        self._exchange.status = head.status
        self._head = head
        if head.status != 200 or not head.content_type.lower().startswith("text/event-stream"):
            self._other_body = bytearray()
        elif head.content_encoding.lower() not in ("", "identity"):
            raise Malformed(f"compressed by {head.content_encoding} although identity was asked")

    def feed(self, chunk: bytes, received_at: float) -> bool:
        """See Sink; true once `[DONE]` came."""
        if self._other_body is not None:
            self._other_body += chunk
            self.patience_s = LINGER_S
            if len(self._other_body) >= MAX_ERROR_BODY_BYTES:
                self.require_stream()
            return False
        single = self._single
        if single is None:
            return self._interpret(chunk, received_at)
        if self._shape.fits(chunk) and self._events.at_event:
            single.token_times.append(received_at)
            return False
        return self._read(single, chunk, received_at)

    def _read(self, exchange: Exchange, chunk: bytes, received_at: float) -> bool:
        """Read events one by one until the shape of those that repeat is known: the first tells the
        role, or is of another kind. What is left of a chunk then is read at once."""
        for _ in range(MAX_SINGLE_EVENTS):
            if self._events.at_event and (end := self._take_known(exchange, chunk, received_at)):
                chunk = chunk[end:]
                break
            end = chunk.find(b"\n\n") + 2
            if end < 2 or end == len(chunk):
                break
            if self._interpret(chunk[:end], received_at):
                return True
            chunk = chunk[end:]
        return bool(chunk) and self._interpret(chunk, received_at)

    def _take_known(self, exchange: Exchange, chunk: bytes, received_at: float) -> int:
        """Take in the events of a known shape that a chunk begins with; where they end."""
        if self._shape.known:
            tokens, end = self._shape.count(chunk)
            exchange.take_tokens(tokens, received_at)
            return end
        end = 0
        while self._running.known and (known := self._running.read(chunk, end)) is not None:
            event, end = known
            exchange.absorb(event, received_at)
        return end

    def _interpret(self, chunk: bytes, received_at: float) -> bool:
        single = self._single
        for payload in self._events.feed(chunk):
            if payload == DONE or is_done(payload):
                self._exchange.close(received_at)
                self.is_done = True
                return True
            if single is None:
                self._exchange.take(payload, received_at)
                continue
            event = interpret(payload)
            single.absorb(event, received_at)
            if event is TOKEN or event is REASONING:
                self._shape.learn(payload)
            elif event.content and event.usage is not None and event.finish_reason is None:
                self._running.learn(payload)
        if self._exchange.is_over:
            self.patience_s = self._last_words_s
        return False

    def require_stream(self) -> None:
        """The reply is over. Raises HttpError for any status but 200, Malformed for no stream."""
        if self._other_body is None:
            return
        head, words = self._head, _words_of(bytes(self._other_body))
        if 300 <= head.status < 400 and head.location:
            words = f"redirects to {head.location}: use that address"
        if head.status != 200:
            raise HttpError(f"HTTP {head.status}: {words or 'no message'}")
        kind = head.content_type or "no content type"
        raise Malformed(f"not an event stream but {kind}: {words or 'does a proxy drop `stream`?'}")

    def end(self, is_broken: bool) -> None:
        """The body is over, cut off or not. Raises Truncated for a reply that is not complete, and
        Malformed where it ended in the words of a failure."""
        exchange = self._exchange
        if exchange.complete:
            return
        for payload in self._events.feed(b"\n\n"):
            if is_done(payload) and not is_broken:
                exchange.close(time.perf_counter())
            else:
                require_no_failure(payload)
        if not is_broken:
            exchange.end_of_body(time.perf_counter())
        if not exchange.complete:
            lack = BROKEN_BODY if is_broken else exchange.lack
            words = host_message(self._events.stray).strip()
            raise Truncated(f"{lack}; the host said: {words}" if words else lack)


def _words_of(body: bytes) -> str:
    """What a body that is no stream says of a failure; nothing where it is a whole completion."""
    try:
        decoded = orjson.loads(body)
    except orjson.JSONDecodeError:
        return host_message(body).strip()
    is_reply = isinstance(decoded, dict) and "choices" in decoded and not tells_failure(decoded)
    return "" if is_reply or not decoded else error_message(decoded)


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
        self._under_way: dict[Exchange | ListExchange, None] = {}
        self._heard_at: float | None = None
        self._last_words_s = LINGER_S

    async def __aenter__(self) -> Self:
        if self._transport is None:
            settings = self._settings
            url = base_url(settings.url) + ROUTES[settings.endpoint]
            self._transport = await self._stack.enter_async_context(
                WireTransport(url, settings.headers, settings.connect_timeout_s)
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
        self._under_way[exchange] = None
        try:
            body = request_body(self._settings, prompt, max_tokens, body_extra)
            await self._converse(body, exchange, self._settings.timeout_s - spent_s)
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
        finally:
            del self._under_way[exchange]
            if exchange.status is not None and exchange.outcome not in ("cancelled", "timeout"):
                self._heard_at = time.perf_counter()

    @property
    def is_waiting(self) -> bool:
        """Whether a request is under way."""
        return bool(self._under_way)

    def heard_at(self, since: float) -> float | None:
        """When output or the end of a reply last came, None for never; any moment after `since`
        will do."""
        for exchange in self._under_way:
            if self._heard_at is not None and self._heard_at > since:
                break
            if (token_at := exchange.last_token_at) is not None:
                self._heard_at = max(self._heard_at or token_at, token_at)
        return self._heard_at

    async def warm(self, connections: int, budget_s: float) -> None:
        """Open so many connections ahead, as far as `budget_s` allows.

        Those that no request takes within `KEEPALIVE_S` are closed again. Raises nothing for a
        host that refuses: its requests will say so.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(budget_s):
                await self._opened().warm(connections)

    def _opened(self) -> Transport:
        if self._transport is None:
            raise RuntimeError("StreamingClient is not open: use `async with`")
        return self._transport

    async def _converse(
        self, body: bytes, exchange: Exchange | ListExchange, timeout_s: float
    ) -> None:
        transport, reception = self._opened(), ReplySink(exchange, self._last_words_s)
        if timeout_s <= 0:
            raise TimeoutError
        exchange.sent_at = time.perf_counter()
        is_broken = False
        try:
            await transport.post(body, reception, timeout_s)
        except Truncated:
            is_broken = True
        reception.require_stream()  # half an error's body still tells what was wrong
        reception.end(is_broken)
        exchange.succeed()
        # Where no [DONE] came, the next reply does not wait for it.
        self._last_words_s = LINGER_S if reception.is_done else 0.0

    def _settle(self, exchange: Exchange | ListExchange, outcome: Outcome, error: str) -> None:
        # A complete reply stays one, whatever ends the wait for its last bytes.
        if exchange.complete and outcome != "malformed":
            exchange.succeed()
            return
        exchange.outcome = outcome
        exchange.error = one_line(redacted(error, self._secrets))
        exchange.end_at = time.perf_counter()


def _fault(error: Exception) -> str:
    """A fault of ours and its place; not logged, as this loop's thread may share no lock."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"fault in the client: {error!r} at {Path(frame.filename).name}:{frame.lineno}"
