"""The smallest aiohttp + uvloop + orjson loop that sends the same bodies and reads every event.

For each numbered reply (see mock_server) it keeps the number, when it was sent and when each token
came, in `time.perf_counter()` seconds.
"""

import asyncio
import itertools
import time

import aiohttp
import orjson
from loop_main import loop_main

HEADERS = {"Content-Type": "application/json"}
Seen = tuple[int, float, list[float]]


async def ask(session: aiohttp.ClientSession, url: str, body: bytes) -> Seen:
    """One request: the number in its usage, when it was sent, when each token came."""
    serial, pending, times = 0, b"", []
    sent_at = time.perf_counter()
    async with session.post(url, data=body, headers=HEADERS) as response:
        async for chunk in response.content.iter_any():
            now = time.perf_counter()
            *events, pending = (pending + chunk).split(b"\n\n")
            for event in events:
                if event == b"data: [DONE]":
                    continue
                content = orjson.loads(event[6:])
                if content["choices"]:
                    times.append(now)
                else:
                    serial = content["usage"]["prompt_tokens"]
    return serial, sent_at, times


async def run(url: str, bodies: list[bytes], concurrency: int, seconds: float) -> list[Seen]:
    """Keep `concurrency` requests in flight for that long."""
    turns, kept = itertools.cycle(bodies), list[Seen]()
    end_at = time.perf_counter() + seconds

    async def user() -> None:
        while time.perf_counter() < end_at:
            seen = await ask(session, url, next(turns))
            if seen[0]:
                kept.append(seen)

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        await asyncio.gather(*(user() for _ in range(concurrency)))
    return kept


if __name__ == "__main__":
    loop_main(run)
