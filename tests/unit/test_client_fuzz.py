"""Replies cut, framed and damaged at random: the same exchange wherever the bytes are cut."""

import asyncio
import re
import time
from collections.abc import Callable
from copy import deepcopy
from dataclasses import asdict
from itertools import pairwise
from typing import Any

import pytest
import uvloop
from behaviours import DONE, delta, event, token, usage
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.client.client import ReplySink, StreamingClient
from loadgen.client.deadlines import Deadlines
from loadgen.client.event_pattern import EventPatterns
from loadgen.client.exchange import Exchange
from loadgen.client.failures import Malformed, StreamFailure
from loadgen.client.protocol import TOKEN, interpret
from loadgen.client.settings import ClientSettings
from loadgen.client.sse import EventStream
from loadgen.client.transport import Head
from loadgen.client.wire_connection import WireConnection

TEXT = re.compile(rb'"(?:text|content|reasoning_content|reasoning)":\s*"([^\x00-\x1f"\\]+)"')
SCALAR = re.compile(rb'"(?:[^"\\]|\\.)*"(?!\s*:)|-?[0-9][0-9.eE+-]*|null')
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"


def running(text: str, count: int = 2, finish_reason: str | None = None, **more: Any) -> bytes:
    """As vLLM counts the tokens so far."""
    counts = {"prompt_tokens": 7, "total_tokens": 7 + count, "completion_tokens": count, **more}
    return token(text, finish_reason, usage=counts)


TEXTS = st.text(st.sampled_from('ab é日🦜"\\\n\r\t\x00\x7f\u2028'), max_size=5)
FINISH = st.sampled_from([None, None, None, "length", "stop", "abort", ""])
EVENTS = st.one_of(
    st.builds(token, TEXTS, FINISH),
    st.builds(running, TEXTS, st.integers(0, 12), FINISH),
    st.builds(lambda text, finish: delta(finish, content=text), TEXTS, FINISH),
    st.builds(lambda text: delta(reasoning_content=text), TEXTS),
    st.builds(lambda text: event(choices=[{"text": text, "token_ids": []}], note=text), TEXTS),
    st.sampled_from([usage(), usage(), DONE, b": ping\n\n", b"data:\n\n", b"event: x\n\n"]),
    st.sampled_from([b"data: {nonsense\n\n", b'data: {"choices":[{"text":"\xff"}]}\n\n']),
    st.builds(lambda text: event(error={"message": text}), TEXTS),
)
PLACES = st.lists(st.integers(0, 100_000), max_size=12)


@st.composite
def bodies(draw: st.DrawFn) -> bytes:
    """Mostly tokens of one shape, as engines send them, some events in another line format."""
    written = [
        draw(st.sampled_from([part, part, part, part.replace(b"\n", b"\r\n")]))
        for part in draw(st.lists(EVENTS, max_size=10))
    ]
    return b"".join(written) + draw(st.sampled_from([b"", usage() + DONE, b"data: {", b"\r"]))


def cut(data: bytes, places: list[int]) -> list[bytes]:
    bounds = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[start:end] for start, end in pairwise(bounds) if start < end]


@st.composite
def framed(draw: st.DrawFn, body: bytes) -> bytes:
    """One of the ways in which a body can be sent; of the last, only the close tells the end."""
    if draw(st.booleans()):
        chunks = b"".join(
            b"%x%b\r\n%b\r\n" % (len(part), draw(st.sampled_from([b"", b";x=y", b" "])), part)
            for part in cut(body, draw(PLACES))
        )
        trailers = draw(st.sampled_from([b"", b"X-Sum: 1\r\n"]))
        return HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\n" + trailers + b"\r\n"
    if draw(st.booleans()):
        return HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body
    return HEAD + b"\r\n" + body


def meaning(body: bytes) -> dict[str, Any]:
    """What a whole body says, without transport and without knowing shapes of tokens."""
    exchange, failure = Exchange(status=200), None
    try:
        for payload in EventStream().feed(body):
            if payload == DONE[6:-2]:
                exchange.close(1.0)
                break
            exchange.take(payload, 1.0)
        else:
            exchange.end_of_body(1.0)
    except Malformed as error:
        failure = error
    if failure is None and exchange.complete:
        exchange.succeed()
    elif isinstance(failure, Malformed):
        exchange.outcome = "malformed"
    else:
        exchange.outcome = "truncated"
    return seen(exchange)


def seen(exchange: Exchange) -> dict[str, Any]:
    return {
        "outcome": exchange.outcome,
        "status": exchange.status,
        "tokens": len(exchange.token_times),
        "finish": exchange.finish_reason,
        "counts": (exchange.prompt_tokens, exchange.cached_tokens, exchange.output_tokens),
    }


class Wire:
    """Stands where uvloop's transport would; nothing is sent."""

    def __init__(self) -> None:
        self.aborted = False

    def write(self, data: bytes) -> None:
        return

    def abort(self) -> None:
        self.aborted = True

    def is_closing(self) -> bool:
        return self.aborted

    def get_write_buffer_size(self) -> int:
        return 0


class InProcess:
    """A transport whose connection is fed the pieces of a reply, and then closed."""

    def __init__(self, pieces: list[bytes]) -> None:
        self._pieces = pieces

    async def post(self, body: bytes, sink: Any, *more: Any) -> None:
        connection = WireConnection("host:80", Deadlines())
        connection.connection_made(Wire())
        asking = asyncio.ensure_future(connection.ask(b"", sink, time.perf_counter() + 60))
        await asyncio.sleep(0)
        for piece in self._pieces:
            connection.data_received(piece)
        connection.connection_lost(None)
        await asyncio.wait_for(asking, 5)

    async def warm(self, connections: int) -> None:
        return


def streamed(pieces: list[bytes]) -> Exchange:
    async def stream() -> Exchange:
        exchange = Exchange()
        options = ClientSettings(url="http://h", model="m")
        async with StreamingClient(options, InProcess(pieces)) as client:
            await client.stream("hi", 3, exchange)
        return exchange

    return asyncio.run(stream())


@settings(max_examples=100, deadline=None)
@given(st.data(), bodies(), PLACES)
def test_any_cut_in_any_framing_means_what_the_body_means(
    data: st.DataObject, body: bytes, places: list[int]
) -> None:
    reply = data.draw(framed(body))
    assert seen(streamed(cut(reply, places))) == meaning(body)


@settings(max_examples=100, deadline=None)
@given(st.data(), bodies(), PLACES, st.binary(max_size=6), st.integers(0, 100_000))
def test_damage_ends_in_an_outcome(
    data: st.DataObject, body: bytes, places: list[int], damage: bytes, place: int
) -> None:
    reply = data.draw(framed(body))
    place %= len(reply) + 1
    kept = data.draw(st.integers(place, len(reply)))
    exchange = streamed(cut(reply[:place] + damage + reply[kept:], places))
    assert exchange.outcome in {"ok", "malformed", "truncated", "http_error", "connect_error"}
    assert exchange.complete == (exchange.outcome == "ok") or exchange.outcome == "malformed"
    assert "fault in the client" not in exchange.error


@settings(max_examples=150, deadline=None)
@given(st.lists(bodies(), min_size=1, max_size=3), PLACES)
def test_known_patterns_change_nothing(parts: list[bytes], places: list[int]) -> None:
    """Times included, with and without them, up to the event that ends the stream or is none; in
    the first reply of a host, which they are learned from, and in the next."""
    chunks, patterns = cut(b"".join(parts), places), EventPatterns()
    for _ in range(2):
        plain, quick = Exchange(status=200), Exchange()
        reception, take = ReplySink(quick, 1.0, patterns), by_parsing(plain)
        reception.begin(Head(200, "text/event-stream"))
        for received_at, chunk in enumerate(chunks):
            ended = [outcome(feed, chunk, received_at) for feed in (take, reception.feed)]
            assert ended[0] == ended[1]
            assert asdict(plain) == asdict(quick)
            if ended[0] is not False:
                break


def by_parsing(exchange: Exchange) -> Callable[[bytes, float], bool]:
    """Feeds an exchange with every event in full."""
    events = EventStream()

    def take(chunk: bytes, received_at: float) -> bool:
        for payload in events.feed(chunk):
            if payload == DONE[6:-2]:
                exchange.close(received_at)
                return True
            exchange.take(payload, received_at)
        return False

    return take


def outcome(feed: Callable[[bytes, float], bool], chunk: bytes, received_at: float) -> bool | str:
    try:
        return feed(chunk, float(received_at))
    except StreamFailure as failure:
        return str(failure)


PLAIN = st.builds(token, TEXTS, FINISH) | st.builds(lambda text: delta(content=text), TEXTS)
ODD_TEXTS = st.sampled_from(
    [
        *(b"", b"\xc3", b'"', b"\\n", b"\n", b'","x":"', b"\\u00e9", b"\\u0000", b"\\", b'\\"'),
        *(b"\\ud83e\\udd9c", b"\\ud83e", b"\\uDD9C", b"\\u12", b"\\x41", b"\\\\", b"\\/"),
    ]
)
PLACED = st.sampled_from([b"a", "é".encode(), b"\x7f"]) | ODD_TEXTS | st.binary(max_size=8)
ODD_NUMBERS = st.sampled_from([b"0", b"00", b"07", b"-1", b"1.5", b"", b"null", b"1,", b"9" * 30])
NUMBERS = st.integers(0, 10**10).map(lambda number: b"%d" % number)


PATTERNS: dict[bytes, EventPatterns] = {}
"""By the event that they were learned from: making them takes a while."""


def same_as_parsed(known: bytes, *others: bytes) -> None:
    """What comes after `known` is the same as if no pattern were known."""
    learnt = Exchange()
    reception = ReplySink(learnt, 1.0, deepcopy(PATTERNS.setdefault(known, EventPatterns())))
    if not PATTERNS[known].known:
        PATTERNS[known] = reception._patterns
    reception.feed(known, 1.0)
    parsed = deepcopy(learnt)
    by_rote = by_parsing(parsed)
    for other in others:
        assert outcome(reception.feed, other, 2.0) == outcome(by_rote, other, 2.0)
    assert asdict(learnt) == asdict(parsed)


def chat(delta: dict[str, Any], finish: Any = None, **more: Any) -> bytes:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
    return event(id="c-1", created=17, model="m", choices=[choice], system_fingerprint="f", **more)


FORMS = [
    token(" word"),
    token(" word", "null"),
    running(" word", 2),
    chat({"role": "assistant", "content": ""}),
    chat({"content": " word"}, obfuscation="", error=""),
    chat({"content": "", "reasoning": "a", "reasoning_content": "a"}),
    chat({"content": "b", "reasoning": "a", "reasoning_content": "a"}),
    chat({"content": [{"type": "text", "text": "a"}]}),
    chat({"reasoning": {"type": "text", "text": "a"}}),
    chat({"content": " word"}, "stop"),
    chat({}, "length", usage={"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}),
    chat({"content": "x"}, usage={"prompt_tokens": "7", "completion_tokens": 3.0}),
    usage(completion_tokens_details={"reasoning_tokens": 2}, total_tokens=12),
    usage(prompt_tokens_details={"cached_tokens": 5}),
    event(type="ping", status=1),
]
VALUES = st.sampled_from(
    [
        *(
            b'"x"',
            b'""',
            b'"null"',
            b'"stop"',
            b'"abort"',
            b'"thinking"',
            b'"error"',
            b'"\\n"',
            b'"redacted"',
        ),
        *(b"null", b"0", b"7", b"500", b"-1", b"2.5", b"3.0", b"1e3", b"007", b"{}", b"[]"),
        *(b"true", b"", b'"\xc3"', '"é"'.encode(), b"9" * 30),
    ]
)


@settings(max_examples=400, deadline=None)
@given(st.sampled_from(FORMS), st.data())
def test_any_value_in_the_place_of_any_other(known: bytes, data: st.DataObject) -> None:
    other = known
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.sampled_from([*SCALAR.finditer(other)]))
        other = other[: place.start()] + data.draw(VALUES) + other[place.end() :]
        if not SCALAR.search(other):
            break
    same_as_parsed(known, known, other, known)


@settings(max_examples=200, deadline=None)
@given(PLAIN, PLACED)
def test_any_bytes_in_the_place_of_a_text(known: bytes, text: bytes) -> None:
    place = TEXT.search(known)
    if place is not None:
        same_as_parsed(known, known[: place.start(1)] + text + known[place.end(1) :])


@settings(max_examples=200, deadline=None)
@given(PLACED, NUMBERS | ODD_NUMBERS, NUMBERS | ODD_NUMBERS)
def test_any_bytes_in_the_places_of_text_and_counts(
    text: bytes, total: bytes, output: bytes
) -> None:
    known = running(" word", 2)
    other = known.replace(b" word", text).replace(b'tokens": 9', b'tokens": ' + total)
    same_as_parsed(known, other.replace(b'completion_tokens": 2', b'completion_tokens": ' + output))


@pytest.mark.parametrize("pending", [b": note ", b"data: 1\n", b"data: {", b"data:", b"id: 1\r"])
@pytest.mark.parametrize("known", [token(" word"), running(" word")])
def test_what_is_known_of_events_says_nothing_inside_one(known: bytes, pending: bytes) -> None:
    same_as_parsed(known, pending, known, known)


def test_events_of_a_known_pattern_are_not_parsed() -> None:
    patterns, chunk = EventPatterns(), token(" one") + token("naïve 🦜")
    patterns.learn(token(" a")[6:-2], TOKEN)
    known = patterns.match(chunk + token(" x", "length"), 0, None)
    assert known is not None
    assert (known[0].event, known[1].end()) == (TOKEN, len(chunk))
    patterns.learn(running(" a", 1)[6:-2], interpret(running(" a", 1)[6:-2]))
    counted = patterns.match(running(" x", 12) + DONE, 0, None)
    assert counted is not None
    assert counted[0].last(counted[1]) == interpret(running(" x", 12)[6:-2])
    assert counted[1].end() == len(running(" x", 12))


VARYING: dict[str, list[dict[str, Any]]] = {
    "content": [{"choices": [{"delta": {"content": text}}]} for text in ('"\\\n', "é日", "a")],
    "escaped": [{"choices": [{"delta": {"content": text}}]} for text in ("\t", "\x01", "a")],
    "id": [{"id": f"c-{n}"} for n in range(3)],
    "created": [{"created": n * 1000} for n in range(3)],
    "system_fingerprint": [{"system_fingerprint": text} for text in ("a", "bc", "d")],
    "obfuscation": [{"obfuscation": text} for text in ("", "x", "yz")],
    "usage": [
        {"usage": {"prompt_tokens": 7, "completion_tokens": n, "total_tokens": 7 + n}}
        for n in range(1, 4)
    ],
}


@pytest.mark.parametrize("name", VARYING)
def test_one_field_that_varies_does_not_cost_the_parsing(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def written(more: dict[str, Any]) -> bytes:
        choice = {"index": 0, "delta": {"content": "a"}, "finish_reason": None}
        return event(**{"id": "c", "choices": [choice], **more})

    exchange, patterns = Exchange(), EventPatterns()
    reception = ReplySink(exchange, 1.0, patterns)
    reception.feed(chat({"role": "assistant", "content": ""}), 1.0)
    reception.feed(written(VARYING[name][-1]), 2.0)
    monkeypatch.setattr(ReplySink, "_interpret", lambda *_: pytest.fail("it was parsed"))
    for place, more in enumerate(VARYING[name], 3):
        reception.feed(written(more), float(place))
    reception.feed(b"".join(map(written, VARYING[name])), 9.0)
    assert list(exchange.token_times) == [2.0, 3.0, 4.0, 5.0, 9.0, 9.0, 9.0]


def test_what_looks_like_a_known_pattern_is_parsed() -> None:
    patterns = EventPatterns()
    patterns.learn(token("a")[6:-2], TOKEN)
    halves = [token("?").replace(b"?", half) for half in (b"\xc3", b"\xa9")]
    assert patterns.match(b"".join(halves), 0, None) is None
    # Line ends inside an event are none of its data.
    patterns.learn(b'{"choices":[\n{"text":"b"}]}', TOKEN)
    assert patterns.match(b'data: {"choices":[\n{"text":"b"}]}\n\n', 0, None) is None
    patterns.learn(running("a")[6:-2], interpret(running("a")[6:-2]))
    ended = running("a").replace(b'"finish_reason": null', b'"finish_reason": "ok"')
    assert patterns.match(ended, 0, None) is None


def test_a_host_of_ever_new_forms_is_not_learned_for_ever() -> None:
    patterns = EventPatterns()
    for number in range(100):
        payload = event(**{f"field{number}": 1, "choices": [{"text": "a"}]})[6:-2]
        patterns.learn(payload, TOKEN)
    assert len(patterns.known) <= 12


async def over_sockets(pieces: list[bytes]) -> Exchange:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b":0.0}")
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0)
        writer.close()

    exchange = Exchange()
    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        options = ClientSettings(url=url, model="m", timeout_s=5.0)
        async with StreamingClient(options) as client:
            await client.stream("hi", 3, exchange)
    return exchange


@settings(max_examples=40, deadline=None)
@given(st.data(), bodies(), PLACES)
def test_a_connection_says_the_same(data: st.DataObject, body: bytes, places: list[int]) -> None:
    pieces = cut(data.draw(framed(body)), places)
    assert seen(uvloop.run(over_sockets(pieces))) == meaning(body)
