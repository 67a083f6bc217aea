"""Chunks that come alone and whole go past the parser; what is read is the same."""

import asyncio
import math
import random

import pytest

from loadgen.client.deadlines import Deadlines
from loadgen.client.transport import Head
from loadgen.client.wire_connection import WireConnection, lone_chunk

CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
# Letters that sizes, line ends and the ends of chunks are made of.
LETTERS = [b"\r\n", b"\r", b"\n", b"1", b"2", b"a", b";", b"3\r\nabc\r\n", b"x" * 17]


class Body:
    """A sink that keeps what it is fed."""

    patience_s = math.inf

    def __init__(self) -> None:
        self.text = b""

    def begin(self, head: Head) -> None:
        assert head.status == 200

    def resend(self) -> None:
        raise AssertionError("nothing is sent twice here")

    def feed(self, chunk: bytes, received_at: float) -> bool:
        self.text += chunk
        return False


class Pipe(asyncio.Transport):
    """A transport that swallows what is sent."""

    def is_closing(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        return 0

    def write(self, data: object) -> None:
        pass

    def abort(self) -> None:
        pass


async def read(*replies: list[bytes]) -> list[bytes]:
    """The bodies of replies that come one after another on a connection, cut as given."""
    connection = WireConnection("host", Deadlines())
    connection.connection_made(Pipe())
    bodies = []
    for pieces in replies:
        sink = Body()
        asked = asyncio.ensure_future(connection.ask(b"?", sink, math.inf))
        await asyncio.sleep(0)
        for piece in pieces:
            connection.data_received(piece)
        await asyncio.wait_for(asked, 5)
        bodies.append(sink.text)
    return bodies


def framed(text: bytes, more: bytes = b"") -> bytes:
    return b"%x%b\r\n%b\r\n" % (len(text), more, text)


def random_text(dice: random.Random) -> bytes:
    return b"".join(dice.choices(LETTERS, k=dice.randint(1, 6)))


def random_cuts(dice: random.Random, frames: list[bytes]) -> list[bytes]:
    """Mostly a piece for each frame, at times two or three, or one for two frames."""
    pieces: list[bytes] = []
    for frame in frames:
        cuts = sorted(dice.choices(range(1, len(frame)), k=dice.choice([0, 0, 0, 1, 2])))
        ends = [*cuts, len(frame)]
        pieces += [frame[a:b] for a, b in zip([0, *cuts], ends, strict=True) if a < b]
        if len(pieces) > 1 and dice.random() < 0.2:
            last = pieces.pop()
            pieces[-1] += last
    return pieces


@pytest.mark.parametrize("first", range(0, 300, 30))
async def test_any_cut_gives_the_same_body(first: int) -> None:
    for seed in range(first, first + 30):
        replies, expected = random_replies(random.Random(seed))
        assert await read(*replies) == expected, seed


def random_replies(dice: random.Random) -> tuple[list[list[bytes]], list[bytes]]:
    """As they come, and their bodies."""
    replies: list[list[bytes]] = []
    expected: list[bytes] = []
    for _ in range(3):
        texts = [random_text(dice) for _ in range(dice.randint(1, 12))]
        more = [dice.choice([b"", b"", b"", b";a=b", b" "]) for _ in texts]
        frames = [framed(*each) for each in zip(texts, more, strict=True)]
        replies.append(random_cuts(dice, [CHUNKED, *frames, b"0\r\nTrailer: 1\r\n\r\n"]))
        expected.append(b"".join(texts))
    return replies, expected


def test_a_size_in_two_pieces_is_one_size() -> None:
    # The second piece alone would be a chunk of one byte.
    text = b"x\r\n" + b"y" * 14
    pieces = [CHUNKED, framed(b"abc"), b"1", b"1\r\nx\r\n", b"y" * 14 + b"\r\n", b"0\r\n\r\n"]
    assert asyncio.run(read(pieces)) == [b"abc" + text]


def test_a_chunk_in_a_chunk_is_text() -> None:
    inner = framed(b"abc")
    whole = framed(b"12" + inner + b"34")
    cut = whole.index(inner)
    pieces = [CHUNKED, whole[:cut], inner, whole[cut + len(inner) :], b"0\r\n\r\n"]
    assert asyncio.run(read(pieces)) == [b"12" + inner + b"34"]


def test_a_body_of_known_length_has_no_chunks() -> None:
    inner = framed(b"abc")
    head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (2 * len(inner))
    assert asyncio.run(read([CHUNKED, b"0\r\n\r\n"], [head, inner, inner])) == [b"", inner * 2]


@pytest.mark.parametrize(
    "data",
    [
        *(b"", b"3\r\nabc", b"3\r\nabcd\r\n", b"3\r\nab\r\n", b"3\r\nabc\n\n", b"0\r\n\r\n"),
        *(b"0x3\r\nabc\r\n", b"+3\r\nabc\r\n", b" 3\r\nabc\r\n", b"3;a\r\nabc\r\n", b"\r\nabc\r\n"),
        *(b"1_0\r\n" + b"x" * 16 + b"\r\n", b"000000003\r\nabc\r\n", b"3\nabc\r\n"),
    ],
)
def test_what_is_not_one_chunk_is_left_to_the_parser(data: bytes) -> None:
    assert lone_chunk(data) is None


@pytest.mark.parametrize("size", [b"f", b"F", b"0f"])
def test_a_lone_chunk(size: bytes) -> None:
    assert lone_chunk(size + b"\r\n" + b"\r\n" * 7 + b"x\r\n") == b"\r\n" * 7 + b"x"
