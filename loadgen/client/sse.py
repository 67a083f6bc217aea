"""Server-Sent Events, incrementally: bytes in, payloads of events out."""

import contextlib

import orjson

from loadgen.client.failures import Malformed, is_failing_name, is_harmless, tells_failure

MAX_EVENT_BYTES = 4 * 1024 * 1024
MAX_STRAY_BYTES = 4096
_BOM = b"\xef\xbb\xbf"
_FIELDS = (b"data", b"event", b"id", b"retry")


class FailureData(bytes):
    """The words of a host that failed, told by something else than an event's JSON."""


class EventStream:
    """Splits one response body into the `data` of its events.

    Follows the WHATWG event stream grammar on bytes: chunks may be cut anywhere, lines end in LF,
    CRLF or CR, an event the stream ends in the middle of is dropped. Events without data, the
    fields id and retry, and the text or number of a heartbeat say nothing in this protocol and are
    skipped. An event named after an error, a field `error`, and a line that is a JSON object of an
    error give FailureData.
    """

    __slots__ = (
        "_after_cr",
        "_data",
        "_is_failing",
        "_max_event_bytes",
        "_name",
        "_partial",
        "_size",
        "_stray",
        "has_begun",
    )

    def __init__(self, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self._max_event_bytes = max_event_bytes
        self._partial = bytearray()
        self._data: list[bytes] = []
        self._size = 0
        self._after_cr = False
        self.has_begun = self._is_failing = False
        self._name = ""  # of the event that has begun
        self._stray = bytearray()

    def feed(self, chunk: bytes) -> list[bytes]:
        """The payloads `chunk` completes.

        Raises Malformed when an event or a line grows beyond the bound without an end.
        """
        return self._whole_events(chunk) or self._parse(chunk)

    @property
    def at_event(self) -> bool:
        """Whether the next byte is the first of an event."""
        return not (self._partial or self._data or self._after_cr or self._name)

    @property
    def stray(self) -> bytes:
        """The first lines that are no fields of an event."""
        return bytes(self._stray)

    def _whole_events(self, chunk: bytes) -> list[bytes] | None:
        """The usual chunk, one or more complete one-line events, without looking at each line."""
        if not self.at_event or len(chunk) > self._max_event_bytes:
            return None
        if not (chunk.startswith(b"data: ") and chunk.endswith(b"\n\n")) or b"\r" in chunk:
            return None
        payloads = chunk[6:-2].split(b"\n\ndata: ")
        if chunk.count(b"\n") != 2 * len(payloads) or b"" in payloads:
            return None
        self.has_begun = True
        return payloads

    def _parse(self, chunk: bytes) -> list[bytes]:
        events = []
        for line in self._lines(chunk):
            if line:
                events += self._take(line)
                continue
            payload = b"\n".join(self._data)
            if self._is_failing:
                events.append(FailureData(payload))
            elif payload and not _is_heartbeat(self._name, payload):
                events.append(payload)
            self._data.clear()
            self._size, self._is_failing, self._name = 0, False, ""
        return events

    def _take(self, line: bytes) -> list[bytes]:
        """Take in a line; the failure that it tells by itself."""
        name, _, value = line.partition(b":")
        self._bound(len(line))
        if name == b"data":
            self._size += len(line) + 1
            self._data.append(value.removeprefix(b" "))
        elif name == b"event":
            self._name = value.decode("utf-8", "replace").strip()
            self._is_failing = is_failing_name(self._name)
        elif name.strip().lower() == b"error":
            return [FailureData(value)]
        elif _is_failure(line):
            return [FailureData(line)]
        elif not any(field.startswith(name) for field in _FIELDS):  # nor a comment, nor cut off
            self._stray += (line + b"\n")[: MAX_STRAY_BYTES - len(self._stray)]
        return []

    def _lines(self, chunk: bytes) -> list[bytes]:
        """The lines `chunk` completes; what follows the last line end is kept."""
        if not chunk:
            return []
        body = chunk[1:] if self._after_cr and chunk.startswith(b"\n") else chunk
        # A CR at the end is a whole line end already: waiting for its LF would delay the event.
        self._after_cr = chunk.endswith(b"\r")
        lines = body.splitlines()
        tail = lines.pop() if lines and not body.endswith((b"\n", b"\r")) else b""
        if lines and self._partial:
            lines[0] = bytes(self._partial) + lines[0]
            self._partial.clear()
        if lines and not self.has_begun:
            lines[0] = lines[0].removeprefix(_BOM)
            self.has_begun = True
        self._partial += tail
        self._bound(len(self._partial))
        return lines

    def _bound(self, pending_bytes: int) -> None:
        if self._size + pending_bytes > self._max_event_bytes:
            raise Malformed(f"an event of more than {self._max_event_bytes} bytes without an end")


def _is_heartbeat(name: str, payload: bytes) -> bool:
    """Whether they are no more than a text or a number, behind a name that is harmless and not that
    of all events."""
    if name in ("", "message") or payload.lstrip().startswith((b"{", b"[")):
        return False
    is_failing = is_failing_name(payload.decode("utf-8", "replace"))
    return is_harmless({"event": name}) and not is_failing


def _is_failure(line: bytes) -> bool:
    with contextlib.suppress(orjson.JSONDecodeError):
        return line.startswith(b"{") and tells_failure(orjson.loads(line))
    return False
