"""The bytes that the events of one reply have in common, to know a token without parsing it."""

import re

from loadgen.client.sse import MAX_EVENT_BYTES

TEXT = re.compile(rb'"(?:text|content|reasoning_content|reasoning)":\s*"([^\x00-\x1f"\\]+)"')
"""A text in JSON that is not empty and needs no escapes."""

_NOT_PLAIN = bytes((*range(0x20), *b'"\\'))


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
