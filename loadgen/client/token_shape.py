"""The bytes that the events of one reply have in common, to know a token without parsing it."""

import re

from loadgen.client.protocol import Event, Usage, interpret
from loadgen.client.sse import MAX_EVENT_BYTES

TEXT = re.compile(rb'"(?:text|content|reasoning_content|reasoning)":\s*"([^\x00-\x1f"\\]+)"')
"""A text in JSON that is not empty and needs no escapes."""

_NOT_PLAIN = bytes((*range(0x20), *b'"\\'))
_COUNT = re.compile(rb'"(completion_tokens|total_tokens)":\s*([0-9]+)')
_MAX_DIGITS = 9
_PROBES = (b"1000001", b"1000002")


class TokenShape:
    """What stood before and after the text of a token that was parsed in full.

    An event with the same bytes around a text is the same JSON but for one string value, as long
    as that text is UTF-8 and needs no escapes. What an event means depends on a string only by
    whether it is empty, so such an event is a token again, if its text is not empty.
    """

    __slots__ = ("_between", "_head", "_tail", "known")

    def __init__(self) -> None:
        self.known = False
        self._head = self._tail = self._between = b""

    def learn(self, payload: bytes) -> None:
        """Take the shape of an event that is a token and nothing else."""
        text = TEXT.search(payload)
        if text is None or b"\n" in payload:
            return
        self._head = b"data: " + payload[: text.start(1)]
        self._tail = payload[text.end(1) :] + b"\n\n"
        self._between = self._tail + self._head
        self.known = True

    def fits(self, chunk: bytes) -> bool:
        """Whether a chunk is one token of this shape and nothing else."""
        head, tail = self._head, self._tail
        return (
            self.known
            and len(head) + len(tail) < len(chunk) <= MAX_EVENT_BYTES
            and chunk.startswith(head)
            and chunk.endswith(tail)
            and is_plain(chunk[len(head) : -len(tail)])
        )

    def count(self, chunk: bytes) -> tuple[int, int]:
        """How many tokens of this shape a chunk begins with, and where the last of them ends.

        The chunk must begin with an event. (0, 0) where they are not all plain: then parse it.
        """
        head = self._head
        if not self.known or not chunk.startswith(head) or len(chunk) > MAX_EVENT_BYTES:
            return 0, 0
        end = chunk.rfind(self._tail, len(head))
        if end < 0:
            return 0, 0
        texts = chunk[len(head) : end].split(self._between)
        # A space between them, so that no two halves of a character make one.
        if b"" in texts or not is_plain(b" ".join(texts)):
            return 0, 0
        return len(texts), end + len(self._tail)


def is_plain(text: bytes) -> bool:
    """Whether these bytes may stand between the quotes of a JSON string as they are."""
    if text.translate(None, _NOT_PLAIN) != text:
        return False
    if text.isascii():
        return True
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


class RunningShape:
    """As TokenShape, for the events of an engine that sends usage with each of them.

    They differ in a text and in two counts. Which of the counts is that of the output is found by
    parsing the event once more with other numbers in their places.
    """

    __slots__ = (
        "_before",
        "_begin",
        "_between",
        "_first_is_output",
        "_head",
        "_tail",
        "_usage",
        "known",
    )

    def __init__(self) -> None:
        self.known = False
        self._begin = b"?"  # no event begins so
        self._head = self._before = self._between = self._tail = b""
        self._first_is_output = False
        self._usage = Usage(None, None, None)

    def learn(self, payload: bytes) -> None:
        """Take the shape of an event with output and running usage, and no finish reason."""
        text = TEXT.search(payload)
        if text is None or b"\n" in payload or payload.startswith(self._begin):
            return
        counts = list(_COUNT.finditer(payload, text.end()))
        if len(counts) != 2:
            return
        first, second = counts
        self._begin = payload[: text.start(1)]
        self._head = b"data: " + self._begin
        self._before = payload[text.end(1) : first.start(2)]
        self._between = payload[first.end(2) : second.start(2)]
        self._tail = payload[second.end(2) :] + b"\n\n"
        self.known = self._is_proven()

    def read(self, chunk: bytes, start: int) -> tuple[Event, int] | None:
        """The event that begins at `start`, which must begin one, and where it ends.

        None where it is of another shape, or where its text is empty or not plain: then parse it.
        """
        text_at = start + len(self._head)
        text_end = chunk.find(b'"', text_at)
        first_at = text_end + len(self._before)
        first_end = chunk.find(self._between, first_at, first_at + _MAX_DIGITS + len(self._between))
        second_at = first_end + len(self._between)
        end = chunk.find(self._tail, second_at, second_at + _MAX_DIGITS + len(self._tail))
        if (
            text_end <= text_at
            or first_end < 0
            or end < 0
            or not chunk.startswith(self._head, start)
            or not chunk.startswith(self._before, text_end)
            or len(chunk) > MAX_EVENT_BYTES
        ):
            return None
        first, second = chunk[first_at:first_end], chunk[second_at:end]
        if not (is_plain(chunk[text_at:text_end]) and _is_count(first) and _is_count(second)):
            return None
        output_tokens = int(first if self._first_is_output else second)
        usage = Usage(self._usage.prompt_tokens, self._usage.cached_tokens, output_tokens)
        return Event(True, True, None, usage), end + len(self._tail)

    def _is_proven(self) -> bool:
        """Whether other numbers change the count of the output and nothing else."""
        first, second = _PROBES
        probe = self._head + b"x" + self._before + first + self._between + second + self._tail
        event = interpret(probe[6:-2])
        usage = event.usage
        if usage is None or usage.output_tokens not in (int(first), int(second)):
            return False
        self._usage = usage
        self._first_is_output = usage.output_tokens == int(first)
        return event == Event(True, True, None, usage)


def _is_count(digits: bytes) -> bool:
    """Whether JSON reads these bytes as a whole number."""
    return digits.isdigit() and (digits[0] != 0x30 or len(digits) == 1)
