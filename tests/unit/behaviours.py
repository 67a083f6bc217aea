"""A real HTTP server on loopback whose paths are named after what it does wrong, or right."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from loadgen.client.settings import ClientSettings

Behaviour = Callable[[web.StreamResponse], Awaitable[None]]

DONE = b"data: [DONE]\n\n"
SECRET = "sk-test-0123456789abcdef"


def event(**fields: Any) -> bytes:
    """One event of a completion stream, in UTF-8 as vLLM writes it."""
    return b"data: " + json.dumps(fields, ensure_ascii=False).encode() + b"\n\n"


def token(text: str, finish_reason: str | None = None, **fields: Any) -> bytes:
    choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": finish_reason}
    return event(id="cmpl-1", object="text_completion", choices=[choice], **fields)


def delta(finish_reason: str | None = None, **content: Any) -> bytes:
    choice = {"index": 0, "delta": content, "finish_reason": finish_reason}
    return event(id="chatcmpl-1", object="chat.completion.chunk", choices=[choice])


def usage(prompt_tokens: int = 7, completion_tokens: int = 3, **details: Any) -> bytes:
    counts = {"prompt_tokens": prompt_tokens, "completion_tokens": completion_tokens, **details}
    return event(id="cmpl-1", choices=[], usage=counts)


REPLY = (token("one"), token(" two"), token(" three", "length"))


def writes(*parts: bytes, pause_s: float = 0.002) -> Behaviour:
    """Sends `parts` one by one, each in an own packet."""

    async def behave(response: web.StreamResponse) -> None:
        for part in parts:
            await response.write(part)
            await asyncio.sleep(pause_s)

    return behave


def then(first: Behaviour, last: Behaviour) -> Behaviour:
    async def behave(response: web.StreamResponse) -> None:
        await first(response)
        await last(response)

    return behave


async def hang(response: web.StreamResponse) -> None:
    await asyncio.sleep(3600)


async def reset(response: web.StreamResponse) -> None:
    """Drop the connection so that the other side sees a TCP reset."""
    await asyncio.sleep(0.02)
    reset_connection(response._req)


async def hang_up(response: web.StreamResponse) -> None:
    """Close the connection without ending the chunked body."""
    assert response._req is not None
    assert response._req.transport is not None
    response._req.transport.close()


async def endless(response: web.StreamResponse) -> None:
    while True:
        await response.write(token("more"))
        await asyncio.sleep(0.005)


async def endless_line(response: web.StreamResponse) -> None:
    while True:
        await response.write(b"data: " + b"x" * 65_536)
        await asyncio.sleep(0)


def reset_connection(request: web.BaseRequest | None) -> None:
    assert request is not None
    assert request.transport is not None
    linger_zero = b"\x01\x00\x00\x00\x00\x00\x00\x00"
    plain = request.transport.get_extra_info("socket")
    plain.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger_zero)
    request.transport.abort()


def split(data: bytes, size: int) -> list[bytes]:
    return [data[start : start + size] for start in range(0, len(data), size)]


CACHED: dict[str, Any] = {"prompt_tokens_details": {"cached_tokens": 5}}
UNICODE = (token("naïve "), token("日本語 "), token("🦜", "stop"))

STREAMS: dict[str, Behaviour] = {
    "normal": writes(*REPLY, usage(), DONE),
    "chat": writes(
        delta(role="assistant", content=""),
        delta(reasoning_content="hm"),
        delta(content="yes"),
        delta("stop"),
        usage(completion_tokens=4),
        DONE,
    ),
    "slow-first-token": then(writes(b": wait\n\n", pause_s=0.1), writes(*REPLY, usage(), DONE)),
    "single-bytes": writes(*split(b"".join((*UNICODE, usage(), DONE)), 1), pause_s=0),
    "odd-pieces": writes(*split(b"".join((*UNICODE, usage(), DONE)), 7), pause_s=0.0005),
    "one-packet": writes(b"".join((*REPLY, usage(), DONE))),
    "crlf": writes(*(part.replace(b"\n", b"\r\n") for part in (*REPLY, usage(), DONE))),
    "no-usage": writes(*REPLY, DONE),
    "no-finish": writes(*REPLY[:2], usage(), DONE),
    "no-done": writes(*REPLY, usage()),
    "neither-usage-nor-done": writes(*REPLY),
    "no-content": writes(token("", "stop"), usage(completion_tokens=0), DONE),
    "nothing": writes(),
    "only-done": writes(DONE),
    "aborted": writes(*REPLY[:2], token("", "abort"), usage(completion_tokens=2), DONE),
    "cached": writes(*REPLY, usage(**CACHED), DONE),
    "cached-zero": writes(*REPLY, usage(prompt_tokens_details={"cached_tokens": 0}), DONE),
    "cached-null": writes(*REPLY, usage(prompt_tokens_details={"cached_tokens": None}), DONE),
    "details-null": writes(*REPLY, usage(prompt_tokens_details=None), DONE),
    "running-usage": writes(
        token("", usage={"prompt_tokens": 7, "completion_tokens": 1}),
        token("é", usage={"prompt_tokens": 7, "completion_tokens": 2}),
        token("", usage={"prompt_tokens": 7, "completion_tokens": 2}),
        token("", "stop", usage={"prompt_tokens": 7, "completion_tokens": 3}),
        usage(**CACHED),
        DONE,
    ),
    "running-usage-cut": then(
        writes(token("a", usage={"prompt_tokens": 7, "completion_tokens": 1})), reset
    ),
    "error-in-stream": writes(
        token("one"), event(error={"message": "EngineCore died", "code": 500}), DONE
    ),
    "bad-json": writes(token("one"), b"data: {nonsense\n\n", *REPLY[1:], usage(), DONE),
    "bad-utf8": writes(b'data: {"choices":[{"text":"\xff\xfe"}]}\n\n'),
    "endless": endless,
    "endless-line": endless_line,
    "hang-mid-stream": then(writes(*REPLY[:2]), hang),
    "hang-after-usage": then(writes(*REPLY, usage()), hang),
    "hang-after-done": then(writes(*REPLY, usage(), DONE), hang),
    "reset-mid-stream": then(writes(*REPLY[:2]), reset),
    "reset-after-done": then(writes(*REPLY, usage(), DONE), reset),
    "hang-up-mid-stream": then(writes(*REPLY[:2], pause_s=0), hang_up),
    "hang-up-with-done": then(writes(*REPLY, usage(), DONE, pause_s=0), hang_up),
}

ERRORS: dict[str, tuple[int, str, str]] = {
    "500-openai": (
        500,
        "application/json",
        json.dumps({"error": {"message": "out of\nblocks", "type": "InternalServerError"}}),
    ),
    "500-html": (
        500,
        "text/html",
        "<html><head><title>502 Bad\n Gateway</title></head><body><h1>x</h1></body></html>",
    ),
    "500-empty": (500, "text/plain", ""),
    "404": (404, "application/json", '{"detail":"Not Found"}'),
    "422": (422, "application/json", '{"detail":[{"loc":["body","x"],"msg":"extra field"}]}'),
    "429": (429, "application/json", '{"error":"rate limit\\u0007 reached"}'),
    "401-echo": (401, "application/json", json.dumps({"error": f"bad key {SECRET} given"})),
    "long-error": (400, "text/plain", "word " * 10_000),
    "json-200": (200, "application/json", '{"choices":[{"text":"all","finish_reason":"stop"}]}'),
}


@dataclass
class BehaviourServer:
    """The running server: where it is and what it was asked."""

    port: int = 0
    bodies: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    clients: set[object] = field(default_factory=set)
    hung_up: asyncio.Event = field(default_factory=asyncio.Event)

    def url(self, behaviour: str) -> str:
        return f"http://127.0.0.1:{self.port}/{behaviour}"

    def settings(self, behaviour: str, **more: Any) -> ClientSettings:
        """How a client asks for that behaviour."""
        given = {"url": self.url(behaviour), "model": "demo"}
        return ClientSettings(**{**given, **more})

    async def complete(self, request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        self.clients.add(request.transport.get_extra_info("peername"))
        self.headers.append(dict(request.headers))
        self.bodies.append(await request.json())
        behaviour = request.match_info["behaviour"]
        if behaviour == "hang-before-headers":
            await asyncio.sleep(3600)
        if behaviour == "reset-before-headers":
            reset_connection(request)
            return web.Response()
        if behaviour == "307":
            raise web.HTTPTemporaryRedirect("/normal/v1/completions")
        if behaviour in ERRORS:
            status, kind, text = ERRORS[behaviour]
            return web.Response(status=status, content_type=kind, text=text)
        return await self._stream(request, STREAMS[behaviour])

    async def _stream(self, request: web.Request, behave: Behaviour) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        await response.prepare(request)
        try:
            await behave(response)
        except ConnectionError:
            self.hung_up.set()
        except asyncio.CancelledError:
            self.hung_up.set()
            raise
        return response


@asynccontextmanager
async def serving(app: web.Application) -> AsyncIterator[int]:
    """Serve `app` on a free loopback port."""
    runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


@asynccontextmanager
async def behaviour_server() -> AsyncIterator[BehaviourServer]:
    server = BehaviourServer()
    app = web.Application()
    app.router.add_post("/{behaviour}/v1/completions", server.complete)
    app.router.add_post("/{behaviour}/v1/chat/completions", server.complete)
    async with serving(app) as server.port:
        yield server


@asynccontextmanager
async def raw_server(answer: bytes) -> AsyncIterator[int]:
    """A TCP server that answers anything with `answer` and hangs up; its port."""

    async def converse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1024)
        writer.write(answer)
        writer.close()

    server = await asyncio.start_server(converse, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


def unused_port() -> int:
    """A loopback port nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
