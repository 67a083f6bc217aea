"""An OpenAI-like host in the test's own event loop: a token each few ms, and what it was asked."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

TOKEN_S = 0.005
PROMPT_TOKENS, CACHED_TOKENS = 100, 64


@dataclass
class OpenAiHost:
    """The running host; `most_in_flight` is how many requests it ever had at once.

    `models_s` is how long it takes to tell its models, which is asked before a swarm starts,
    `token_s` how long each token takes.
    `refusal` is what it answers with status 500 in place of tokens, as long as it is not empty.
    Its replies end with their usage where it `tells_usage`.
    """

    url: str = ""
    models_s: float = 0.0
    token_s: float = TOKEN_S
    refusal: str = ""
    tells_usage: bool = True
    models_asked: int = 0
    bodies: list[dict[str, Any]] = field(default_factory=list)
    most_in_flight: int = 0
    _in_flight: int = 0

    async def list_models(self, _: web.Request) -> web.Response:
        self.models_asked += 1
        await asyncio.sleep(self.models_s)
        return web.json_response({"object": "list", "data": [{"id": "demo", "object": "model"}]})

    async def complete(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.bodies.append(body)
        if self.refusal:
            return web.Response(status=500, text=self.refusal)
        self._in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self._in_flight)
        try:
            return await self._stream(request, int(body["max_tokens"]))
        finally:
            self._in_flight -= 1

    async def _stream(self, request: web.Request, tokens: int) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for number in range(tokens):
            await asyncio.sleep(self.token_s)
            reason = "length" if number == tokens - 1 else None
            choice = {"index": 0, "text": " a", "finish_reason": reason}
            await response.write(_event(choices=[choice]))
        usage = _event(choices=[], usage=_usage(tokens)) if self.tells_usage else b""
        await response.write(usage + b"data: [DONE]\n\n")
        return response


def _usage(tokens: int) -> dict[str, Any]:
    return {
        "prompt_tokens": PROMPT_TOKENS,
        "completion_tokens": tokens,
        "prompt_tokens_details": {"cached_tokens": CACHED_TOKENS},
    }


def _event(**fields: Any) -> bytes:
    return b"data: " + json.dumps(fields).encode() + b"\n\n"


@asynccontextmanager
async def openai_host() -> AsyncIterator[OpenAiHost]:
    """Serve on a free loopback port until the exit."""
    host = OpenAiHost()
    app = web.Application()
    app.router.add_get("/v1/models", host.list_models)
    app.router.add_post("/v1/completions", host.complete)
    runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield host
    finally:
        await runner.cleanup()
