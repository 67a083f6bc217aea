"""One HTTP/1.1 connection whose bytes go to a sink in the call that receives them."""

import asyncio
import math
import re
import time
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import httptools

from loadgen.client.deadlines import Deadlines
from loadgen.client.failures import ConnectFailed, Malformed, Truncated
from loadgen.client.transport import (
    BROKEN_BODY,
    LINGER_S,
    SETTLE_S,
    Head,
    Sink,
    describe_connect_error,
)

CRLF = b"\r\n"
HEAD_FIELDS = (
    b"content-type",
    b"retry-after",
    b"content-encoding",
    b"location",
    b"x-served-by",
    b"date",
)
"""Those of a Head, in its order."""
MAX_SIZE_BYTES = 8
_SIZE = re.compile(rb"[0-9A-Fa-f]+")
MAX_OVERHEAD_BYTES = 65_536
"""Bytes of headers, of interim replies or of trailers that may come in a row without a body."""


def lone_chunk(data: bytes) -> bytes | None:
    """The content of the chunk that `data` is; None where it is not exactly one without extensions.

    The last chunk of a body, which is empty, is none of these.
    """
    size_end = data.find(CRLF, 0, MAX_SIZE_BYTES + 2)
    size = _size(data[:size_end]) if size_end > 0 else 0
    if not size or len(data) != size_end + 2 + size + 2 or not data.endswith(CRLF):
        return None
    return data[size_end + 2 : -2]


@lru_cache(maxsize=4096)
def _size(digits: bytes) -> int:
    return int(digits, 16) if _SIZE.fullmatch(digits) else 0


class SatisfiedSink:
    """Stands where a sink was that wants no more; the rest of a body is nothing to it."""

    patience_s = math.inf

    def feed(self, chunk: bytes, received_at: float) -> bool:
        """See Sink."""
        return False


SATISFIED = SatisfiedSink()


class Unanswered(ConnectFailed):
    """The host hung up before any byte of an answer."""


class WireConnection(asyncio.Protocol):
    """Asks one question after another. Whoever waits for the reply is woken once, at its end.

    A body that goes on behind its reply is read to its end without anybody waiting, for `LINGER_S`
    and `MAX_OVERHEAD_BYTES` at most; until then the connection is not `usable`.

    The parser calls `on_*` while it is fed. Where it can it calls methods of built-in types, so
    that a chunk runs no Python of ours before the sink sees all that arrived together.
    """

    __slots__ = (
        "_begun",
        "_between",
        "_chunked",
        "_deadlines",
        "_draining",
        "_due_at",
        "_ended",
        "_failure",
        "_head",
        "_headers",
        "_host",
        "_inside",
        "_keep",
        "_loop",
        "_on_drained",
        "_over_at",
        "_overhead",
        "_parser",
        "_parts",
        "_settle_s",
        "_sink",
        "_transport",
        "_until_close",
        "_waiter",
        "idle_since",
        "on_body",
        "on_chunk_complete",
        "on_chunk_header",
        "on_header",
    )

    def __init__(
        self,
        host: str,
        deadlines: "Deadlines[WireConnection]",
        on_drained: "Callable[[WireConnection], None]" = lambda _: None,
    ) -> None:
        """`host` is how error texts name it; `on_drained` is called when it is no longer draining,
        usable again or not, unless `ask` has yet to return."""
        self._host, self._on_drained = host, on_drained
        self._deadlines = deadlines
        self._loop = asyncio.get_running_loop()
        self._transport: Any = None
        self._sink: Any = None
        self._parts: list[bytes] = []
        self._headers: dict[bytes, bytes] = {}
        self.on_body = self._parts.append
        self.on_header = self._headers.setdefault
        # Turned round at both ends of a chunk: the first says whether the parser is inside one.
        self._inside = [False, True]
        self.on_chunk_header = self.on_chunk_complete = self._inside.reverse
        self._parser = httptools.HttpResponseParser(self)
        # As browsers and aiohttp read replies: some hosts pad the sizes of chunks, or
        # state a length beside them.
        self._parser.set_dangerous_leniencies(
            lenient_chunked_length=True,
            lenient_headers=True,
            lenient_optional_cr_before_lf=True,
            lenient_spaces_after_chunk_size=True,
        )
        self.idle_since = 0.0
        self._keep = True
        self._draining = False

    async def ask(
        self, request: bytes, sink: Sink, due_at: float, settle_s: float = SETTLE_S
    ) -> None:
        """Send `request` and return at the end of its reply, or `settle_s` later where the body
        has not ended then.

        Raises as Transport.post does, and Unanswered.
        """
        self._sink, self._due_at, self._settle_s = sink, due_at, settle_s
        self._head: Head | None = None
        self._begun = self._ended = self._keep = self._until_close = False
        self._chunked = self._between = False
        self._over_at: float | None = None
        self._overhead = 0
        self._failure: BaseException | None = None
        self._waiter = self._loop.create_future()
        self._deadlines.set(self, due_at)
        try:
            self._send(request)
            await self._waiter
        finally:
            self._sink = None
            if self._draining:
                self._deadlines.set(self, time.perf_counter() + LINGER_S)
            else:
                self._deadlines.drop(self)
                if not self.usable:
                    self.drop()
        if self._failure is not None:
            raise self._failure

    @property
    def usable(self) -> bool:
        """Whether another question may be asked: all was sent and read, and nobody hung up."""
        return self._keep and not self._transport.is_closing()

    @property
    def draining(self) -> bool:
        """Whether the end of a body is awaited behind its reply."""
        return self._draining

    @property
    def over_for_s(self) -> float:
        """How long the last reply has been over; infinite where its body ended with it."""
        return math.inf if self._over_at is None else time.perf_counter() - self._over_at

    def drop(self) -> None:
        """Close it without regard to what is still to be sent or read."""
        self._keep = False
        if self._transport is not None:
            self._transport.abort()
        self._drained()

    def expire(self) -> None:
        """The time of the request, or of the rest of its body, is over."""
        if self._draining:
            self.drop()
        else:
            self._end(TimeoutError() if self._over_at is None else None)

    def _send(self, request: bytes) -> None:
        if self._transport.is_closing():
            self.connection_lost(None)
        else:
            self._transport.write(request)

    def connection_made(self, transport: Any) -> None:
        """The connection is open, TLS included."""
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Bytes have arrived by a transport that does not know when."""
        self.receive(data, time.perf_counter())

    def receive(self, data: bytes, received_at: float) -> None:
        """Parse what has arrived, and hand the body's bytes on with that time."""
        if self._sink is None or self._waiter.done():
            if self._draining:
                self._drain(data)
            else:
                self.drop()  # nobody waits for this
            return
        if self._between and (chunk := lone_chunk(data)) is not None:
            self._overhead = 0
            self._feed(chunk, received_at)
            return
        broken = False
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._ended, self._keep = True, False
        except httptools.HttpParserError:
            broken = not self._ended
            self._keep = False
        self._overhead = 0 if self._parts else self._overhead + len(data)
        # A part of a size line has been read where the end is another.
        self._between = self._chunked and not self._inside[0] and data.endswith(CRLF)
        self._deliver(received_at)
        if self._ended:
            self._end(None)
        elif broken or self._overhead > MAX_OVERHEAD_BYTES:
            self._end(self._garbled())

    def _deliver(self, received_at: float) -> None:
        if self._head is None:
            return
        if not self._begun:
            self._begun = True
            try:
                self._sink.begin(self._head)
            except Exception as error:
                self._parts.clear()
                self._end(error)
                return
            if (patience_s := self._sink.patience_s) != math.inf:
                self._over(max(patience_s, self._settle_s))
        parts = self._parts
        if not parts:
            return
        chunk = parts[0] if len(parts) == 1 else b"".join(parts)
        parts.clear()
        self._feed(chunk, received_at)

    def _feed(self, chunk: bytes, received_at: float) -> None:
        sink = self._sink
        try:
            is_enough = sink.feed(chunk, received_at)
        except Exception as error:
            self._end(error)
            return
        if is_enough:
            self._sink = SATISFIED
            self._over(self._settle_s)
        elif sink.patience_s != math.inf:
            if self._over_at is None:
                self._over(max(sink.patience_s, self._settle_s))
        elif self._over_at is not None:  # it goes on behind its end
            self._over_at = None
            self._deadlines.set(self, self._due_at)

    def _over(self, patience_s: float) -> None:
        """The body may go on for so long, but not beyond the time of the request.

        Then whoever waits for the reply is woken.
        """
        self._over_at = time.perf_counter()
        if self._ended:
            return
        if patience_s > 0:
            self._deadlines.set(self, min(self._due_at, self._over_at + patience_s))
        else:
            self._end(None)

    def _drain(self, data: bytes) -> None:
        """Read on to the end of a body that nobody wants."""
        self._overhead += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserUpgrade, httptools.HttpParserError):
            self._overhead = MAX_OVERHEAD_BYTES + 1
        self._parts.clear()
        if self._overhead > MAX_OVERHEAD_BYTES:
            self.drop()
        elif self._ended:
            self._keep = self._keep and not self._transport.get_write_buffer_size()
            self._drained()

    def _drained(self) -> None:
        if self._draining:
            self._draining = False
            self._deadlines.drop(self)
            if self._sink is None:
                self._on_drained(self)

    def on_headers_complete(self) -> None:
        """Called by the parser."""
        status = self._parser.get_status_code()
        if status < 200 and status != 101:
            return
        headers = {name.lower(): value for name, value in self._headers.items()}
        coding = headers.get(b"transfer-encoding", b"").lower()
        self._chunked = coding.endswith(b"chunked")
        self._until_close = b"content-length" not in headers and not self._chunked
        texts = (headers.get(name, b"").decode("utf-8", "replace") for name in HEAD_FIELDS)
        self._head = Head(status, *texts)

    def on_message_begin(self) -> None:
        """Called by the parser; raises, and so stops it, at a second reply to one question."""
        if self._ended:
            raise ValueError("a reply nobody asked for")

    def on_message_complete(self) -> None:
        """Called by the parser."""
        self._headers.clear()
        if self._head is not None and not self._ended:
            self._ended = True
            self._keep = self._parser.should_keep_alive()

    def connection_lost(self, error: Exception | None) -> None:
        """Either side has closed it."""
        self._keep = False
        self._drained()
        if self._sink is None:
            return
        if self._begun:
            whole = self._until_close and error is None
            self._end(None if whole else Truncated(BROKEN_BODY))
        elif error is not None:
            self._end(self._silent(describe_connect_error(error, self._host)))
        else:
            self._end(self._silent(f"{self._host} closed the connection before it answered"))

    def _silent(self, text: str) -> ConnectFailed:
        return ConnectFailed(text) if self._overhead else Unanswered(text)

    def _garbled(self) -> Exception:
        if self._begun:
            return Truncated(BROKEN_BODY)
        return Malformed(f"{self._host} does not speak HTTP")

    def _end(self, failure: BaseException | None) -> None:
        """Wake whoever waits; the first reason stands."""
        if self._waiter.done():
            return
        self._failure = failure
        self._draining = (
            self._over_at is not None
            and not self._ended
            and failure is None
            and self._parser.should_keep_alive()
        )
        # What was not sent whole, or not read to its end, cannot be followed by a question.
        self._keep = (
            self._keep
            and self._ended
            and failure is None
            and not self._transport.get_write_buffer_size()
        )
        self._waiter.set_result(None)
