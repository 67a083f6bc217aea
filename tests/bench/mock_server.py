"""An OpenAI completion server that costs almost nothing: prebuilt bytes on a raw uvloop protocol.

Every event carries the moment before it was written, a token in its text: the tokens of a reply
differ in nothing else, as vLLM's do. Without a delay a whole reply is one write. With one, each
event is written on its own when it is due (see mock_pace), and what was written when is kept as
the truth to compare with. Such a reply has a number from 1 on: it is in
`usage.prompt_tokens` and in the text of the first token, as some clients keep the one and some the
other; without a delay it is 0. The first reply of a connection begins up to the length of a reply
later, so that streams that are started together do not speak together. `GET /log` gives what was
noted, in `time.perf_counter_ns()`, one clock for all processes of a machine; with `--counts` only
numbers are kept, so that a run may last. With `--tls FILE` it speaks https by the certificate in
FILE, whose key lies beside it.
"""

import argparse
import asyncio
import contextlib
import gc
import os
import ssl
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import orjson
import uvloop
from mock_log import Counts, Log
from mock_pace import Pace, Speech

MODEL = "mock"
HEAD_END = b"\r\n\r\n"
STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n"
)
LAST_CHUNK = b"0\r\n\r\n"
NUMBER, T_NS = b"%8d", b"%19d"
"""Of a fixed width, as the length of a chunk stands before it."""
READ_BYTES = 64 * 1024
GOLDEN = 0.618034
"""Multiples of it, without their whole part, are spread evenly from the first few on."""


class Script:
    """The bytes of a reply of `tokens` events, as templates of its number and of the time.

    That of a chat begins with an event of the role, which comes with the first token.
    """

    def __init__(self, tokens: int, gap_ns: int, is_chat: bool = False) -> None:
        self.tokens, self.gap_ns = tokens, gap_ns
        form = _delta if is_chat else _text
        self.events = [_token(number, tokens, form) for number in range(tokens)]
        if is_chat:
            self.events[0] = _event([_choice(_delta("", role="assistant"))], None) + self.events[0]
        self.closing = _closing(tokens)
        whole = STREAM_HEAD + b"".join(self.events) + self.closing
        self._pieces = whole.replace(NUMBER, NUMBER % 0).split(T_NS)

    def whole(self, now_ns: int) -> bytes:
        """A reply written at once."""
        return (T_NS % now_ns).join(self._pieces)

    def event(self, number: int, reply: int, now_ns: int) -> bytes:
        """One event of a numbered reply; the last one comes with the end."""
        if number == 0:
            return self.events[0] % (reply, now_ns)
        if number == self.tokens - 1:
            return self.events[number] % now_ns + self.closing % (reply, now_ns)
        return self.events[number] % now_ns

    def first_gap_ns(self, connection: int) -> int:
        """How long after its request a connection's first reply begins."""
        return int(self.gap_ns * (1 + self.tokens * (connection * GOLDEN % 1)))


def _token(number: int, tokens: int, form: Callable[[str], dict[str, Any]]) -> bytes:
    reason = "length" if number == tokens - 1 else None
    text = " @T_NS" if number else " #NUMBER @T_NS"
    return _event([_choice(form(text), reason)], None)


def _text(text: str) -> dict[str, Any]:
    return {"text": text}


def _delta(text: str, **more: str) -> dict[str, Any]:
    return {"delta": {**more, "content": text}}


def _choice(output: dict[str, Any], reason: str | None = None) -> dict[str, Any]:
    return {"index": 0, **output, "logprobs": None, "finish_reason": reason}


def _closing(tokens: int) -> bytes:
    """Usage, `[DONE]` and the end of the body."""
    usage = {"prompt_tokens": "NUMBER", "completion_tokens": tokens, "total_tokens": tokens}
    return _event([], usage, {"t_ns": "T_NS"}) + b"e\r\ndata: [DONE]\n\n\r\n" + LAST_CHUNK


def _event(choices: list[Any], usage: Any, more: dict[str, str] | None = None) -> bytes:
    """A chunk with one event."""
    head = {"id": "cmpl-0123456789abcdef", "object": "text_completion", "created": 1_700_000_000}
    content = {**head, "model": MODEL, "choices": choices, "usage": usage, **(more or {})}
    data = b"data: " + orjson.dumps(content) + b"\n\n"
    data = (
        data.replace(b'"T_NS"', T_NS)
        .replace(b"@T_NS", b"@" + T_NS)
        .replace(b'"NUMBER"', NUMBER)
        .replace(b"#NUMBER", b"#" + NUMBER)
    )
    length = len(data.replace(T_NS, T_NS % 0).replace(NUMBER, NUMBER % 0))
    return b"%x\r\n%b\r\n" % (length, data)


class Cipher:
    """A server's side of TLS between bytes and bytes, at 1.5 us a record: a loop's takes 10."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._is_open = False

    def decipher(self, data: bytes) -> bytes:
        """What has come whole; nothing while hands are shaken. Raises ssl.SSLError."""
        self._incoming.write(data)
        plain = b""
        with contextlib.suppress(ssl.SSLWantReadError):
            if not self._is_open:
                self._tls.do_handshake()
                self._is_open = True
            while piece := self._tls.read(READ_BYTES):
                plain += piece
        return plain

    def encipher(self, data: bytes) -> bytes:
        """Records of `data`, behind what the handshake wants to say."""
        if data:
            self._tls.write(data)
        return self._outgoing.read()


class Connection(asyncio.Protocol):
    """One kept-alive connection; a client sends its next request after the reply."""

    def __init__(
        self,
        number: int,
        scripts: tuple[Script, Script],
        pace: Pace,
        log: Log | Counts,
        cipher: Cipher | None,
    ) -> None:
        (self._script, self._chat), self._pace, self._log = scripts, pace, log
        self._cipher, self._is_first = cipher, True
        self._gap_ns = self._script.first_gap_ns(number)
        self._pending = b""

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._descriptor = transport.get_extra_info("socket").fileno()

    def connection_lost(self, error: Exception | None) -> None:
        self._descriptor = -1

    def data_received(self, data: bytes) -> None:
        now_ns = time.perf_counter_ns()
        if self._cipher is not None:
            data = self._cipher.decipher(data)
            self._send(self._cipher.encipher(b""))
        data = self._pending + data if self._pending else data
        head_end = data.find(HEAD_END)
        if head_end < 0 or len(data) < head_end + 4 + _body_length(data[:head_end]):
            self._pending = data
            return
        self._pending = b""
        if data.startswith(b"POST /v1/completions "):
            self._reply(self._script, now_ns)
        elif data.startswith(b"POST /v1/chat/completions "):
            self._reply(self._chat, now_ns)
        else:
            self._write(_answer(data.split(b" ", 2)[1], self._log))

    def _reply(self, script: Script, now_ns: int) -> None:
        log = self._log
        reply = log.received(now_ns, bool(script.gap_ns), self._is_first)
        self._is_first = False
        if not script.gap_ns:
            self._write(script.whole(now_ns))
            log.done(now_ns)
            return
        self._write(STREAM_HEAD)
        self._pace.add(now_ns + self._gap_ns, Speech(partial(self._speak, script), reply))
        self._gap_ns = script.gap_ns

    def _speak(self, script: Script, speech: Speech, due_ns: int) -> int:
        """Write the next event; returns when the one after it is due, 0 for none."""
        if self._descriptor < 0:
            return 0
        log, number = self._log, speech.spoken
        speech.spoken += 1
        now_ns = time.perf_counter_ns()
        log.spoke(speech.reply, now_ns, due_ns)
        self._write(script.event(number, speech.reply, now_ns))
        if speech.spoken < script.tokens:
            return due_ns + script.gap_ns
        log.done(now_ns)
        return 0

    def _write(self, data: bytes) -> None:
        self._send(data if self._cipher is None else self._cipher.encipher(data))

    def _send(self, data: bytes) -> None:
        # Past the transport, which would hold the bytes back until all streams due now are served.
        written = 0
        if not self._transport.get_write_buffer_size():
            try:
                written = os.write(self._descriptor, data)
            except BlockingIOError:
                pass
            except OSError:
                self._descriptor = -1
                return
        if written < len(data):
            self._transport.write(data[written:])


def _body_length(head: bytes) -> int:
    _, _, rest = head.lower().partition(b"\r\ncontent-length:")
    return int(rest.split(b"\r\n", 1)[0]) if rest else 0


def _answer(path: bytes, log: Log | Counts) -> bytes:
    status, content = b"404 Not Found", b"{}"
    if path == b"/v1/models":
        card = {"id": MODEL, "object": "model", "owned_by": "mock"}
        status, content = b"200 OK", orjson.dumps({"object": "list", "data": [card]})
    elif path == b"/health":
        status = b"200 OK"
    elif path == b"/log":
        status, content = b"200 OK", orjson.dumps(log, option=orjson.OPT_NON_STR_KEYS)
    head = b"HTTP/1.1 %b\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    return head % (status, len(content)) + content


def tls_context(certificate: Path) -> ssl.SSLContext:
    """A server's, from a certificate and the key beside it."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, certificate.with_suffix(".key"))
    return context


async def serve(
    scripts: tuple[Script, Script], log: Log | Counts, tls: ssl.SSLContext | None
) -> None:
    """Serve on a free port, which is printed, until killed."""
    connections = 0
    pace = Pace(asyncio.get_running_loop())

    def connection() -> Connection:
        nonlocal connections
        connections += 1
        cipher = None if tls is None else Cipher(tls)
        return Connection(connections, scripts, pace, log, cipher)

    server = await asyncio.get_running_loop().create_server(
        connection, "127.0.0.1", 0, backlog=2048
    )
    sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await server.serve_forever()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tokens", type=int, default=16)
    parser.add_argument("--gap-ms", type=float, default=0.0)
    parser.add_argument("--counts", action="store_true", help="keep numbers alone")
    parser.add_argument("--tls", type=Path, metavar="FILE", help="https by this certificate")
    parsed = parser.parse_args()
    tls = tls_context(parsed.tls) if parsed.tls else None
    log = Counts() if parsed.counts else Log()
    gc.freeze()
    gc.disable()  # a collection would stop every stream; nothing here makes cycles
    gap_ns = int(parsed.gap_ms * 1e6)
    scripts = Script(parsed.tokens, gap_ns), Script(parsed.tokens, gap_ns, is_chat=True)
    uvloop.run(serve(scripts, log, tls))


if __name__ == "__main__":
    main()
