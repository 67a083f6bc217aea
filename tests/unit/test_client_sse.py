"""The event stream parser, whatever the chunks."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.client.failures import Malformed
from loadgen.client.sse import EventStream

LINE_ENDS = ("\n", "\r\n", "\r")


def feed_all(chunks: list[bytes]) -> list[bytes]:
    events = EventStream()
    return [payload for chunk in chunks for payload in events.feed(chunk)]


def cut(data: bytes, places: list[int]) -> list[bytes]:
    bounds = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[start:end] for start, end in pairwise(bounds)]


PAYLOAD_LINE = st.text(st.characters(codec="utf-8", exclude_characters="\r\n"), max_size=12)
NOISE = st.sampled_from([": comment", ":", "id: 7", "event: x", "retry", "unknown: y", "dat"])


@st.composite
def streams(draw: st.DrawFn) -> tuple[bytes, list[bytes]]:
    """A stream in the grammar, and the payloads it holds."""
    text, payloads = "", []
    for lines in draw(st.lists(st.lists(PAYLOAD_LINE, min_size=1, max_size=3), max_size=6)):
        for line in lines:
            end = draw(st.sampled_from(LINE_ENDS))
            if draw(st.booleans()):
                text += draw(NOISE) + end
            space = " " if line.startswith(" ") else draw(st.sampled_from(["", " "]))
            text += f"data:{space}{line}{end}"
        # A lone LF after a CR would belong to it, so the blank line repeats the end in use.
        text += end
        payloads.append("\n".join(lines).encode())
    return text.encode(), [payload for payload in payloads if payload]


@given(streams(), st.lists(st.integers(0, 10_000), max_size=12))
def test_any_split_gives_the_events_of_the_stream(
    stream: tuple[bytes, list[bytes]], places: list[int]
) -> None:
    data, payloads = stream
    assert feed_all([data]) == payloads
    assert feed_all(cut(data, places)) == payloads
    assert feed_all([data[i : i + 1] for i in range(len(data))]) == payloads


SNIPPETS = (
    b"data: a\n\n",
    b"data: a\n\ndata: b\n\n",
    b"data: a\ndata: b\n\n",
    b"data: a\r\ndata: b\n\n",
    b"data: a\n: c\n\n",
    b"data: \n\n",
    b"event: ping\n",
    b"data: a\n",
    b"data: a\r",
    b"data",
    b"\n",
    b"\r",
    b": c\n",
    b"\xc3\xa9",
)


@settings(max_examples=500)
@given(st.lists(st.sampled_from(SNIPPETS), max_size=5))
def test_any_chunk_means_what_its_bytes_mean_one_by_one(chunks: list[bytes]) -> None:
    data = b"".join(chunks)
    assert feed_all(chunks) == feed_all([data[i : i + 1] for i in range(len(data))])


def test_an_event_is_out_with_the_byte_that_ends_it() -> None:
    for data in (b"data: a\n\n", b"data: a\r\r", b"data: a\r\n\r"):
        events = EventStream()
        assert events.feed(data[:-1]) == []
        assert events.feed(data[-1:]) == [b"a"]


def test_a_byte_order_mark_is_skipped_once() -> None:
    assert feed_all([b"\xef\xbb", b"\xbfdata: a\n\n", b"data: \xef\xbb\xbfb\n\n"]) == [
        b"a",
        b"\xef\xbb\xbfb",
    ]


def test_an_unfinished_event_is_dropped() -> None:
    assert feed_all([b"data: a\n\ndata: b\n"]) == [b"a"]


@pytest.mark.parametrize("endless", [b"data: xxxx", b": xxxx", b"data: x\n", b"data:\n"])
def test_what_never_ends_is_malformed(endless: bytes) -> None:
    events = EventStream(max_event_bytes=1000)
    events.feed(b"data: small\n\n" * 500)
    with pytest.raises(Malformed, match="1000 bytes"):
        all(events.feed(endless) == [] for _ in range(1000))


def test_one_chunk_larger_than_the_bound_is_malformed() -> None:
    with pytest.raises(Malformed):
        EventStream(max_event_bytes=1000).feed(b"data: " + b"x" * 1000 + b"\n\n")


def test_many_small_events_in_one_large_chunk_are_fine() -> None:
    assert len(EventStream(max_event_bytes=1000).feed(b"data: x\n\n" * 1000)) == 1000
