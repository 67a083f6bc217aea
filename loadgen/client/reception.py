"""What becomes of the bytes of one reply: its head judged, its events told to an exchange."""

from loadgen.client.exchange import Exchange
from loadgen.client.failures import HttpError, Malformed
from loadgen.client.fault_text import host_message
from loadgen.client.list_exchange import ListExchange
from loadgen.client.protocol import DONE, TOKEN, interpret
from loadgen.client.running_shape import RunningShape
from loadgen.client.sse import EventStream
from loadgen.client.token_shape import TokenShape
from loadgen.client.transport import Head

MAX_ERROR_BODY_BYTES = 65_536


class Reception:
    """The sink of a completion's reply; raises Malformed and HttpError into the transport."""

    __slots__ = ("_error_body", "_events", "_exchange", "_running", "_shape", "_single")

    def __init__(self, exchange: Exchange | ListExchange) -> None:
        self._exchange = exchange
        self._events = EventStream()
        self._shape = TokenShape()
        self._running = RunningShape()
        # The replies to a list take turns, and who reads texts wants each event.
        self._single = exchange if type(exchange) is Exchange else None
        self._error_body: bytearray | None = None

    def resend(self) -> None:
        """See Sink."""
        self._exchange.resends += 1

    def begin(self, head: Head) -> None:
        """See Sink."""
        self._exchange.status = head.status
        if head.status != 200:
            self._error_body = bytearray()
        elif not head.content_type.lower().startswith("text/event-stream"):
            raise Malformed(
                f"not an event stream but {head.content_type or 'no content type'}: "
                "does a proxy drop `stream`?"
            )
        elif head.content_encoding.lower() not in ("", "identity"):
            raise Malformed(f"compressed by {head.content_encoding} although identity was asked")

    def feed(self, chunk: bytes, received_at: float) -> bool:
        """See Sink; true once `[DONE]` came."""
        if self._error_body is not None:
            self._error_body += chunk
            if len(self._error_body) >= MAX_ERROR_BODY_BYTES:
                self.require_ok()
            return False
        single = self._single
        if single is None:
            return self._interpret(chunk, received_at)
        if self._shape.fits(chunk) and self._events.at_event:
            single.token_times.append(received_at)
            return False
        if not (self._shape.known or self._running.known):
            # The first event tells the shape of the others that came with it.
            end = chunk.find(b"\n\n") + 2
            if end > 1 and self._interpret(chunk[:end], received_at):
                return True
            chunk = chunk[end:] if end > 1 else chunk
        if self._events.at_event:
            chunk = chunk[self._take_known(single, chunk, received_at) :]
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
            if payload == DONE:
                self._exchange.close(received_at)
                return True
            if single is None:
                self._exchange.take(payload, received_at)
                continue
            event = interpret(payload)
            single.absorb(event, received_at)
            if event is TOKEN:
                self._shape.learn(payload)
            elif event.content and event.usage is not None and event.finish_reason is None:
                self._running.learn(payload)
        return False

    def require_ok(self) -> None:
        """The reply is over. Raises HttpError for any status but 200."""
        if self._error_body is not None:
            message = host_message(bytes(self._error_body))
            raise HttpError(f"HTTP {self._exchange.status}: {message or 'no message'}")
