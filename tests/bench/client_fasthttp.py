"""A locustfile: Locust's own FastHttpUser streaming the bodies of a file, fairly read.

Locust's `iter_lines` reads blocks of a fixed size and holds tokens back; this reads up to the end
of an event. Locust gets each request's time to first token as its response time, and what
bare_client keeps of numbered replies is kept here as well. BODIES and REPLIES name the files.
"""

import itertools
import os
import time
from pathlib import Path
from typing import Any

import orjson
from locust import FastHttpUser, events, task

bodies = itertools.cycle(Path(os.environ["BODIES"]).read_bytes().splitlines())
kept: list[tuple[int, float, list[float]]] = []


class Streaming(FastHttpUser):
    """Sends one request after another."""

    @task
    def complete(self) -> None:
        """One streamed completion."""
        sent_at = time.perf_counter()
        headers = {"Content-Type": "application/json"}
        body = next(bodies)
        with self.client.post(
            "/v1/completions", data=body, headers=headers, stream=True, catch_response=True
        ) as response:
            number, times = _read(response.stream)
            if number:
                kept.append((number, sent_at, times))
            response.request_meta["response_time"] = (times[0] - sent_at) * 1000
            response.success()


def _read(stream: Any) -> tuple[int, list[float]]:
    number, times = 0, []
    while (event := stream.readline(b"\n\n")) != b"data: [DONE]\n\n":
        content = orjson.loads(event[6:])
        if content["choices"]:
            times.append(time.perf_counter())
        else:
            number = content["usage"]["prompt_tokens"]
    stream.read()
    return number, times


@events.quit.add_listener
def _write(**_: Any) -> None:
    Path(os.environ["REPLIES"]).write_bytes(orjson.dumps(kept))
