"""An OpenAI completion server that costs almost nothing: prebuilt bytes on a raw uvloop protocol.

Without a delay a whole reply is one write of prebuilt bytes. With one, each event is written on
its own when it is due, and the moment before each write is kept as the truth to compare with. Such
a reply has a number from 1 on, which travels in `usage.prompt_tokens` because every client reports
that; without a delay it is 0. `GET /log` gives what was noted, in `time.perf_counter_ns()`, one
clock for all processes of a machine.
"""

import argparse
import asyncio
import os
import sys
import time
from dataclasses import dataclass, field
from typing import Any

import orjson
import uvloop

MODEL = "mock"
HEAD_END = b"\r\n\r\n"
STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n"
)
LAST_CHUNK = b"0\r\n\r\n"


@dataclass(slots=True)
class Log:
    """What the server saw: `replies` maps a number to its receipt and its writes."""

    first_post_ns: int = 0
    done_ns: list[int] = field(default_factory=list)
    replies: dict[int, list[int]] = field(default_factory=dict)


class Script:
    """The bytes of a reply of `tokens` events, of which the last one ends it."""

    def __init__(self, tokens: int, gap_s: float) -> None:
        self.gap_s = gap_s
        self.tokens = tokens
        self.events = [_token(number, tokens) for number in range(tokens)]
        self.whole = STREAM_HEAD + b"".join(self.events) + self.closing(0)

    def closing(self, prompt_tokens: int) -> bytes:
        """Usage, `[DONE]` and the end of the body."""
        usage = {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": self.tokens,
            "total_tokens": prompt_tokens + self.tokens,
        }
        return _event(_completion([], usage)) + _chunk(b"data: [DONE]\n\n") + LAST_CHUNK


def _token(number: int, tokens: int) -> bytes:
    reason = "length" if number == tokens - 1 else None
    choice = {"index": 0, "text": f" word{number}", "logprobs": None, "finish_reason": reason}
    return _event(_completion([choice], None))


def _completion(choices: list[Any], usage: Any) -> dict[str, Any]:
    head = {"id": "cmpl-0123456789abcdef", "object": "text_completion", "created": 1_700_000_000}
    return {**head, "model": MODEL, "choices": choices, "usage": usage}


def _event(content: dict[str, Any]) -> bytes:
    return _chunk(b"data: " + orjson.dumps(content) + b"\n\n")


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


class Connection(asyncio.Protocol):
    """One kept-alive connection; a client sends its next request after the reply."""

    def __init__(self, script: Script, log: Log) -> None:
        self._script = script
        self._log = log
        self._pending = b""

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._number = transport.get_extra_info("socket").fileno()

    def connection_lost(self, error: Exception | None) -> None:
        self._number = -1

    def data_received(self, data: bytes) -> None:
        data = self._pending + data if self._pending else data
        head_end = data.find(HEAD_END)
        if head_end < 0 or len(data) < head_end + 4 + _body_length(data[:head_end]):
            self._pending = data
            return
        self._pending = b""
        if data.startswith(b"POST /v1/completions "):
            self._reply()
        else:
            self._transport.write(_answer(data.split(b" ", 2)[1], self._log))

    def _reply(self) -> None:
        log, now_ns = self._log, time.perf_counter_ns()
        log.first_post_ns = log.first_post_ns or now_ns
        if not self._script.gap_s:
            self._transport.write(self._script.whole)
            log.done_ns.append(now_ns)
            return
        serial = len(log.replies) + 1
        log.replies[serial] = [now_ns]
        self._write(STREAM_HEAD)
        start_s = asyncio.get_running_loop().time()
        self._wait(serial, 0, start_s)

    def _wait(self, serial: int, number: int, start_s: float) -> None:
        due_s = start_s + (number + 1) * self._script.gap_s
        asyncio.get_running_loop().call_at(due_s, self._speak, serial, number, start_s)

    def _speak(self, serial: int, number: int, start_s: float) -> None:
        if self._number < 0:
            return
        self._log.replies[serial].append(time.perf_counter_ns())
        if number + 1 < self._script.tokens:
            self._write(self._script.events[number])
            self._wait(serial, number + 1, start_s)
        else:
            self._write(self._script.events[number] + self._script.closing(serial))
            self._log.done_ns.append(time.perf_counter_ns())

    def _write(self, data: bytes) -> None:
        # Past the transport, which would hold the bytes back until all streams due now are served.
        os.write(self._number, data)


def _body_length(head: bytes) -> int:
    _, _, rest = head.lower().partition(b"\r\ncontent-length:")
    return int(rest.split(b"\r\n", 1)[0]) if rest else 0


def _answer(path: bytes, log: Log) -> bytes:
    status, content = b"404 Not Found", b"{}"
    if path == b"/v1/models":
        card = {"id": MODEL, "object": "model", "owned_by": "mock"}
        status, content = b"200 OK", orjson.dumps({"object": "list", "data": [card]})
    elif path == b"/log":
        status, content = b"200 OK", orjson.dumps(log, option=orjson.OPT_NON_STR_KEYS)
    head = b"HTTP/1.1 %b\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    return head % (status, len(content)) + content


async def serve(script: Script) -> None:
    """Serve on a free port, which is printed, until killed."""
    log = Log()
    server = await asyncio.get_running_loop().create_server(
        lambda: Connection(script, log), "127.0.0.1", 0, backlog=2048
    )
    sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await server.serve_forever()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tokens", type=int, default=16)
    parser.add_argument("--gap-ms", type=float, default=0.0)
    parsed = parser.parse_args()
    uvloop.run(serve(Script(parsed.tokens, parsed.gap_ms / 1000)))


if __name__ == "__main__":
    main()
