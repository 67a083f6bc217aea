"""What the events of a host have in common, to know what one says without parsing its JSON."""

import re
from dataclasses import dataclass

from loadgen.client.failures import Malformed
from loadgen.client.protocol import Event, Usage, interpret
from loadgen.client.sse import MAX_EVENT_BYTES

MAX_PATTERNS = 12
MAX_LESSONS = 64
"""Events of a client that are looked at; a host that sends ever new forms gets no more time."""

_SCALAR = re.compile(rb'"(?:[^"\\]|\\.)*"(\s*:)?|-?[0-9][0-9.eE+-]*')
_PLAIN = rb'[^"\\\x00-\x1f]*+'
# Halves of a pair of surrogates are left to the parser.
_ESCAPED = rb'\\(?:["\\/bfnrt]|u(?![dD][89a-fA-F])[0-9a-fA-F]{4})'
_CHARACTERS = rb"%b(?:%b%b)*+" % (_PLAIN, _ESCAPED, _PLAIN)
_FORMS = {
    "text": rb'"%b"' % _CHARACTERS,
    "some text": rb'"(?!")%b"' % _CHARACTERS,
    "number": rb"-?(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?(?:[eE][+-]?[0-9]++)?",
}
_COUNT = rb"0|[1-9][0-9]{0,8}+"
_TEXTS = (b'"x"', b'"null"', b'"error"', b'"thinking"', b'"encrypted"')
_NUMBERS = (b"1000001", b"0", b"-1.5")
_COUNTED = ("prompt_tokens", "cached_tokens", "output_tokens")
"""The first fields of Usage, and attributes of Exchange."""
_LINE_ENDS = re.compile(rb"[\\\r\n]")


@dataclass(frozen=True, slots=True, eq=False)
class EventPattern:
    """Matches events that say the same as the one it was made of; `run` takes as many as there are.

    A string may be any other, and a number any other, where that changes
    nothing of the event's meaning, which was tried out; else it stays as it was. Counts of tokens
    are groups named after them.
    """

    run: re.Pattern[bytes]
    event: Event
    counted: tuple[str, ...]

    @classmethod
    def of(cls, payload: bytes, event: Event) -> "EventPattern | None":
        """Of the data of an event and its meaning; None where they are not to be known."""
        pieces, end, counted = [], 0, list[str]()
        for scalar, place in _places(payload, event):
            if place in _COUNTED:
                counted.append(place)
                form = b"(?P<%b>%b)" % (place.encode(), _COUNT)
            else:
                form = _FORMS[place] if place else re.escape(scalar[0])
            pieces += [re.escape(payload[end : scalar.start()]), form]
            end = scalar.end()
        if len(counted) > len({*counted}):
            return None
        one = b"".join([b"data: ", *pieces, re.escape(payload[end:]), rb"\n\n"])
        run = re.compile(b"(?:%b)++" % one)
        return cls(run, event, tuple(counted)) if run.fullmatch(b"data: %b\n\n" % payload) else None

    def last(self, found: re.Match[bytes]) -> Event:
        """The last event of a match."""
        event, usage = self.event, self.event.usage
        if usage is None:
            return event
        counts = list(usage)
        for name in self.counted:
            counts[_COUNTED.index(name)] = int(found[name])
        return event._replace(usage=Usage._make(counts))


class EventPatterns:
    """Those of one host, learned from its replies: they differ in an id, a time, a text."""

    __slots__ = ("_followers", "_lessons", "_seen", "known")

    def __init__(self) -> None:
        self.known: list[EventPattern] = []
        self._seen: set[tuple[bytes, Event]] = set()
        self._lessons = 0
        self._followers: dict[EventPattern | None, EventPattern] = {}

    def learn(self, payload: bytes, event: Event) -> None:
        """Take in an event that had to be parsed."""
        if self._lessons >= MAX_LESSONS or len(self.known) >= MAX_PATTERNS:
            return
        if _LINE_ENDS.search(payload) or not _is_lesson(event):
            return
        self._lessons += 1
        form = _SCALAR.sub(_key_alone, payload), event._replace(usage=None)
        if form in self._seen:
            return
        self._seen.add(form)
        pattern = EventPattern.of(payload, event)
        if pattern is not None:
            self.known.insert(0, pattern)

    def match(
        self, chunk: bytes, start: int, before: EventPattern | None
    ) -> tuple[EventPattern, re.Match[bytes]] | None:
        """The pattern of the events that begin at `start`, and all that follow each other.

        `before` is that of the events before them, as those of a host come in an order.
        """
        if len(chunk) > MAX_EVENT_BYTES:
            return None
        expected = self._followers.get(before)
        if expected is not None and (found := expected.run.match(chunk, start)) is not None:
            return (expected, found) if is_utf8(found[0]) else None
        for pattern in self.known:
            if (found := pattern.run.match(chunk, start)) is not None:
                self._followers[before] = pattern
                return (pattern, found) if is_utf8(found[0]) else None
        return None


def is_utf8(data: bytes) -> bool:
    """Whether these bytes are UTF-8, as JSON has to be."""
    if data.isascii():
        return True
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _is_lesson(event: Event) -> bool:
    """Not a running usage without a text: its count says whether there was a token. Reasoning may
    be counted beside the rest, which is told by one total alone."""
    usage = event.usage
    if usage is None:
        return True
    is_plain = event.content and event.finish_reason is None
    return not usage.reasoning_tokens and (is_plain or not event.in_choice)


def _key_alone(scalar: re.Match[bytes]) -> bytes:
    return scalar[0] if scalar[1] is not None else b"?"


def _places(payload: bytes, event: Event) -> list[tuple[re.Match[bytes], str]]:
    """The values of an event, and what else may stand in the place of each."""
    values = [scalar for scalar in _SCALAR.finditer(payload) if scalar[1] is None]
    places = [(value, _place(payload, value, event)) for value in values]
    emptied = payload
    for value, place in reversed(places):
        if place == "text":
            emptied = emptied[: value.start()] + b'""' + emptied[value.end() :]
    if _meaning(emptied) == event:
        return places
    # The output may stand in two of them, of which one has to be there.
    longer = {value.start() for value in values if len(value[0]) > 2}
    return [
        (value, "some text" if place == "text" and value.start() in longer else place)
        for value, place in places
    ]


def _place(payload: bytes, value: re.Match[bytes], event: Event) -> str:
    """One of _FORMS, "some text", "number", a count of tokens by its name, or nothing."""

    def meaning(probe: bytes) -> Event | None:
        return _meaning(payload[: value.start()] + probe + payload[value.end() :])

    if value[0].startswith(b'"'):
        if any(meaning(probe) != event for probe in _TEXTS):
            return ""
        return "text" if meaning(b'""') == event else "some text"
    changed = [meaning(probe) for probe in _NUMBERS]
    if all(each == event for each in changed):
        return "number"
    if event.usage is None:
        return ""
    for name in _COUNTED:
        if changed[0] == event._replace(usage=event.usage._replace(**{name: int(_NUMBERS[0])})):
            return name
    return ""


def _meaning(payload: bytes) -> Event | None:
    try:
        return interpret(payload)
    except Malformed:
        return None
