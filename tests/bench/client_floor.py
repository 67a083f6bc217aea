"""The cost floor: an asyncio.Protocol on uvloop that knows the mock server's replies by heart.

It opens its connections first, takes the time of what arrives, counts tokens by a fixed text and
keeps for each numbered reply what bare_client keeps. No client that reads HTTP and JSON can cost
less, so it shows what the server and the machine can do.
"""

import asyncio
import itertools
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

from loop_main import loop_main

Seen = tuple[int, float, list[float]]


class Floor(asyncio.Protocol):
    """One connection that sends the next request when a reply is complete."""

    def __init__(self, turns: Iterator[bytes], end_at: float, kept: list[Seen]) -> None:
        self._turns, self._end_at, self._kept = turns, end_at, kept
        self.over = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        if not self.over.done():
            self.over.set_result(None)

    def send(self) -> None:
        """The next request, until the time is over."""
        self._times: list[float] = []
        self._sent_at = time.perf_counter()
        if self._sent_at < self._end_at:
            self._transport.write(next(self._turns))
        else:
            self._transport.close()

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter()
        if b'"text":' in data:
            self._times.extend([now] * data.count(b'"text":'))
        if data.endswith(b"0\r\n\r\n"):
            number = int(data.rpartition(b'"prompt_tokens":')[2][:8])
            if number:
                self._kept.append((number, self._sent_at, self._times))
            self.send()


async def run(url: str, bodies: list[bytes], concurrency: int, seconds: float) -> list[Seen]:
    """Keep `concurrency` requests in flight for that long."""
    address = urlsplit(url)
    head = f"POST {address.path} HTTP/1.1\r\nHost: {address.netloc}\r\n"
    head += "Content-Type: application/json\r\nContent-Length: "
    requests = [f"{head}{len(body)}\r\n\r\n".encode() + body for body in bodies]
    turns, kept = itertools.cycle(requests), list[Seen]()
    end_at = time.perf_counter() + seconds
    loop = asyncio.get_running_loop()
    opened = [
        loop.create_connection(
            lambda: Floor(turns, end_at, kept), address.hostname or "", address.port or 80
        )
        for _ in range(concurrency)
    ]
    floors = [floor for _, floor in await asyncio.gather(*opened)]
    for floor in floors:
        floor.send()
    await asyncio.gather(*(floor.over for floor in floors))
    return kept


if __name__ == "__main__":
    loop_main(run)
