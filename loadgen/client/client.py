"""Streams one completion after another and says truthfully what became of each."""

import asyncio
import contextlib
import math
import time
import traceback
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote

from loadgen.client.deadlines import by_its_clock, pause_before_retry_s
from loadgen.client.event_pattern import EventPattern, EventPatterns, is_utf8
from loadgen.client.exchange import Exchange, ListExchange
from loadgen.client.failures import (
    Malformed,
    Rejected,
    StreamFailure,
    Truncated,
    failure_in_ok,
    failure_of_status,
    host_message,
    names_failure,
    one_line,
    redacted,
    secrets_of,
)
from loadgen.client.host import base_url
from loadgen.client.protocol import (
    DONE,
    ROUTES,
    error_in,
    interpret,
    is_done,
    request_body,
    require_no_failure,
    words_of_body,
    words_of_event,
)
from loadgen.client.settings import ClientSettings
from loadgen.client.sse import MAX_EVENT_BYTES, EventStream
from loadgen.client.token_times import ReadLog
from loadgen.client.transport import BROKEN_BODY, LINGER_S, Head, Transport
from loadgen.client.wire import WireTransport
from loadgen.record import Outcome

MAX_ERROR_BODY_BYTES = 65_536
MAX_SINGLE_EVENTS = 4
LAST_EVENT = b"data: %b\n\n" % DONE


class ReplySink:
    """The sink of a completion's reply; raises what a failure means into the transport."""

    __slots__ = (
        *("_before", "_came_at", "_current", "_events", "_exchange", "_head", "_last_words_s"),
        *("_other_body", "_over_events", "_patterns", "_single", "_unread"),
        *("goes_on", "is_done", "patience_s"),
    )

    def __init__(
        self,
        exchange: Exchange | ListExchange,
        last_words_s: float = LINGER_S,
        patterns: EventPatterns | None = None,
    ) -> None:
        """`last_words_s` is how long `[DONE]` may take behind a reply that is complete, infinite
        for a host that calls each of its events the last; `patterns` are those of its host."""
        self._exchange = exchange
        self._last_words_s, self.patience_s, self.is_done = last_words_s, math.inf, False
        self._events = EventStream()
        # The pattern of the last events, and that of events which are tokens and nothing else.
        self._before: EventPattern | None = None
        self._current: EventPattern | None = None
        self._patterns = EventPatterns() if patterns is None else patterns
        # The replies to a list take turns, and who reads texts wants each event.
        self._single = exchange if type(exchange) is Exchange else None
        self._head, self._came_at = Head(200), -math.inf
        self._other_body: bytearray | None = None
        self._over_events: int | None = None  # how many the reply had when it was complete
        self.goes_on = False
        self._unread = b""  # the last event that brought nothing

    @property
    def heard_at(self) -> float:
        """When something last came, if only a comment by which a host keeps the connection; far
        back for never."""
        return max(self._came_at, self._exchange.last_token_at or -math.inf)

    def resend(self) -> None:
        """See Sink."""
        self._exchange.resends += 1

    def begin(self, head: Head) -> None:
        """See Sink."""
        self._exchange.status, self._exchange.served_by = head.status, head.served_by
        self._head, self._came_at = head, time.perf_counter()
        if head.status != 200 or not head.content_type.lower().startswith("text/event-stream"):
            self._other_body, self.patience_s = bytearray(), LINGER_S
        elif head.is_compressed:
            raise Malformed(f"compressed by {head.content_encoding} although identity was asked")

    def feed(self, chunk: bytes, received_at: float) -> bool:
        """See Sink; true once `[DONE]` came."""
        if self._other_body is not None:
            self._other_body += chunk
            if len(self._other_body) >= MAX_ERROR_BODY_BYTES:
                self.require_stream()
            return False
        single = self._single
        if single is None:
            self._came_at = received_at
            return self._interpret(chunk, received_at)
        current = self._current
        if (
            current is not None
            and (found := current.run.fullmatch(chunk)) is not None
            and (chunk.isascii() or is_utf8(chunk))
            and self._events.at_event
            and len(chunk) <= MAX_EVENT_BYTES
        ):
            single.token_times.extend([received_at] * chunk.count(b"\n\n"))
            if current.event.usage is not None:
                single.count_along(found, current.counted)
            return False
        self._came_at = received_at
        if self._events.at_event:
            known = self._take_known(single, chunk, received_at)
            if known == len(chunk):
                return False
            chunk = chunk[known:]
        return self._read(single, chunk, received_at)

    def _read(self, exchange: Exchange, chunk: bytes, received_at: float) -> bool:
        """Read events one by one while each may teach what the next ones say; then what is left."""
        if chunk == LAST_EVENT and self._events.at_event:
            return self._end(received_at)
        for _ in range(MAX_SINGLE_EVENTS):
            end = chunk.find(b"\n\n") + 2
            if end < 2 or end == len(chunk) or not self._events.at_event:
                break
            if self._interpret(chunk[:end], received_at):
                return True
            if self._events.at_event:
                end += self._take_known(exchange, chunk[end:], received_at)
            chunk = chunk[end:]
        return bool(chunk) and self._interpret(chunk, received_at)

    def _take_known(self, exchange: Exchange, chunk: bytes, received_at: float) -> int:
        """Take in the events of known patterns that a chunk begins with; where they end."""
        end = 0
        while end < len(chunk) and (known := self._patterns.match(chunk, end, self._before)):
            pattern, found = known
            count = chunk.count(b"\n\n", end, found.end())
            event, end = pattern.last(found), found.end()
            exchange.take_many(event, count, received_at)
            self._before = pattern
            self._current = pattern if event.content and event.finish_reason is None else None
            if not (event.in_choice or event.usage):
                self._unread = found[0].rstrip().rpartition(b"data: ")[2]
        if end:
            self._events.has_begun = True
            if exchange.is_over:
                self._be_patient()
        return end

    def _interpret(self, chunk: bytes, received_at: float) -> bool:
        single = self._single
        for payload in self._events.feed(chunk):
            if payload == DONE or is_done(payload):
                return self._end(received_at)
            if single is None:
                self._exchange.take(payload, received_at)
                continue
            event = interpret(payload)
            single.absorb(event, received_at)
            self._current = None
            self._patterns.learn(payload, event)
            if not (event.in_choice or event.usage):
                self._unread = payload
        if self._exchange.is_over:
            self._be_patient()
        return False

    def _be_patient(self) -> None:
        """Wait for the last words alone, until output behind them says that they were not."""
        events = sum(map(len, self._exchange.times_of_replies))
        if self._over_events is None:
            self._over_events, self.patience_s = events, self._last_words_s
        elif events > self._over_events:
            self.goes_on, self.patience_s = True, math.inf

    def _end(self, received_at: float) -> bool:
        self._exchange.close(received_at)
        self.is_done = True
        return True

    def require_stream(self) -> None:
        """The reply is over. Raises what any status but 200 means, or a body that is no stream."""
        if self._other_body is None:
            return
        head, body = self._head, bytes(self._other_body)
        words = words_of_body(body)
        if head.is_compressed:
            body, words = b"", f"compressed by {head.content_encoding}"
        if 300 <= head.status < 400 and head.location:
            words = f"redirects to {head.location}: use that address"
        retry_after = by_its_clock(head.retry_after, head.date)
        if head.status != 200:
            raise failure_of_status(head.status, words, retry_after)
        kind = head.content_type or "no content type"
        said = f"not an event stream but {kind}: {words or 'does a proxy drop `stream`?'}"
        raise failure_in_ok(error_in(body) if words else None, said, retry_after)

    def end(self, is_broken: bool) -> None:
        """The body is over, cut off or not. Raises Truncated for a reply that is not complete, and
        Malformed where it ended in the words of a failure."""
        exchange, stray = self._exchange, self._events.stray
        if exchange.complete:
            if names_failure(stray):
                raise Malformed(f"error inside the stream: {host_message(stray).strip()}")
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
            words = host_message(self._events.stray).strip() or words_of_event(self._unread)
            raise Truncated(f"{lack}; the host said: {words}" if words else lack)


class StreamingClient:
    """A client of one host, for any number of requests at once on one event loop.

    Outcomes are `ok`, `cancelled` and those of `failures`. For `ok` it takes a finish reason, and
    the closing usage or `[DONE]`: what happens to the connection, the clock or the task after that
    changes nothing. Without output it is ok and has no TTFT.
    """

    def __init__(self, settings: ClientSettings, transport: Transport | None = None) -> None:
        self.log = ReadLog()
        self._settings = settings
        self._stack = contextlib.AsyncExitStack()
        self._transport = transport
        self._secrets = secrets_of(settings.headers, settings.extra_body)
        self._under_way: dict[Exchange | ListExchange, ReplySink | None] = {}
        """With who takes its reply, None while it does not wait for one."""
        self._heard_at = -math.inf
        self._last_words_s = LINGER_S
        self._patterns = EventPatterns()
        self._safe = lru_cache(maxsize=64)(self._made_safe)

    async def __aenter__(self) -> Self:
        if self._transport is None:
            settings = self._settings
            url = base_url(settings.url) + ROUTES[settings.endpoint]
            self._transport = await self._stack.enter_async_context(
                WireTransport(url, settings.headers, settings.connect_timeout_s, self.log)
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
        session: str = "",
    ) -> None:
        """Send one request and fill `exchange` while its reply arrives.

        A list of prompts is one call; its replies go to a ListExchange of as many members.
        `spent_s` is what the request has already used of its time; `session` goes into the session
        header, where there is one.
        Raises nothing but CancelledError, and that only after the exchange is settled.
        """
        self._under_way[exchange] = None
        if isinstance(exchange, Exchange):
            exchange.usage_runs_along = self._settings.continuous_usage
        try:
            body = request_body(self._settings, prompt, max_tokens, body_extra)
            own_headers = self._session_line(session)
            await self._try(body, own_headers, exchange, self._settings.timeout_s - spent_s)
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
            exchange.served_by = self._safe(exchange.served_by)
            for times in exchange.times_of_replies:
                self.log.count(times)

    @property
    def is_waiting(self) -> bool:
        """Whether a request waits for the host, and not for when it may ask again."""
        return any(sink is not None for sink in self._under_way.values())

    def heard_at(self, since: float) -> float | None:
        """When any part of a reply last came, None for never; any moment after `since` will do."""
        for sink in self._under_way.values():
            if self._heard_at > since:
                break
            if sink is not None:
                self._heard_at = max(self._heard_at, sink.heard_at)
        return None if math.isinf(self._heard_at) else self._heard_at

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

    def _session_line(self, session: str) -> bytes:
        name = self._settings.session_header
        return f"{name}: {quote(session)}\r\n".encode() if name and session else b""

    async def _try(
        self, body: bytes, own_headers: bytes, exchange: Exchange | ListExchange, timeout_s: float
    ) -> None:
        """Converse, and again after a rejection as often as `retries` says, in the same time."""
        begun = time.perf_counter()
        while True:
            left_s = timeout_s - (time.perf_counter() - begun)
            try:
                await self._converse(body, own_headers, exchange, left_s)
            except Rejected as refusal:
                pause_s = pause_before_retry_s(refusal.retry_after, exchange.retries)
                has_begun = any(map(len, exchange.times_of_replies))
                if exchange.retries >= self._settings.retries or has_begun or pause_s >= left_s:
                    raise
                await asyncio.sleep(pause_s)
                exchange.begin_again()
            else:
                return

    async def _converse(
        self, body: bytes, own_headers: bytes, exchange: Exchange | ListExchange, timeout_s: float
    ) -> None:
        transport = self._opened()
        reception = ReplySink(exchange, self._last_words_s, self._patterns)
        if timeout_s <= 0:
            raise TimeoutError
        exchange.sent_at = exchange.sent_at or time.perf_counter()
        is_broken, self._under_way[exchange] = False, reception
        try:
            await transport.post(body, reception, timeout_s, own_headers)
        except Truncated:
            is_broken = True
        finally:
            self._heard_at = max(self._heard_at, reception.heard_at)
            self._under_way[exchange] = None
        reception.require_stream()  # half an error's body still tells what was wrong
        reception.end(is_broken)
        exchange.succeed()
        # Where no [DONE] came, the next reply does not wait for it.
        if self._last_words_s != math.inf:
            last_words_s = LINGER_S if reception.is_done else 0.0
            self._last_words_s = math.inf if reception.goes_on else last_words_s

    def _settle(self, exchange: Exchange | ListExchange, outcome: Outcome, error: str) -> None:
        # A complete reply stays one, whatever ends the wait for its last bytes but an error in it.
        if exchange.complete and outcome not in ("malformed", "rejected"):
            exchange.succeed()
            return
        exchange.outcome = outcome
        exchange.error = self._made_safe(error)
        exchange.end_at = time.perf_counter()

    def _made_safe(self, text: str) -> str:
        """A text of the host for one line of a table, without our secrets."""
        return one_line(redacted(text, self._secrets))


def _fault(error: Exception) -> str:
    """A fault of ours and its place; not logged, as this loop's thread may share no lock."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"fault in the client: {error!r} at {Path(frame.filename).name}:{frame.lineno}"
