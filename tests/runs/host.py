"""An OpenAI-like host in its own process; the model's name says how it behaves.

    python host.py PORT

`/log` tells every prompt that arrived, in order; `/bodies` every request without its prompts,
`/headers` their headers, and `/listed` who asked for the models. With `PORT vllm` it says that it
is vLLM.
"""

import asyncio
import contextlib
import json
import sys
import time
from collections import Counter

from aiohttp import web

MODELS = (
    "normal",
    "cached",
    "slow",
    "storm",
    "flaky",
    "truncating",
    "endless",
    "malformed",
    "queued",
    "steady",
    "warming",
    "silent",
    "stalling",
)
PAUSE_S = 0.005
SERVICE_S = 0.05
"""Of `queued`, which answers one request after the other."""
STEADY_S = 0.3
"""Of `steady`, before the first token: far more than what a busy machine adds."""
COLD, COLD_S, WARM_S = 40, 2.0, 0.5
"""So many requests of `warming`, the first ones, wait for so long, and then each for less."""

LIVELY_S = 1.0
"""How long, from the first request on, `silent` and `stalling` answer. Then the one says nothing,
and the other no more than a first token."""


def event(**fields: object) -> bytes:
    return b"data: " + json.dumps(fields).encode() + b"\n\n"


def token(text: str, finish_reason: str | None = None, index: int = 0) -> bytes:
    return event(choices=[{"index": index, "text": text, "finish_reason": finish_reason}])


class Host:
    def __init__(self, owner: str) -> None:
        self.owner = owner
        self.prompts: list[str] = []
        self.bodies: list[dict] = []
        self.headers: list[dict] = []
        self.listed: list[str] = []
        self.served: Counter[str] = Counter()
        self.turn = asyncio.Lock()
        self.begun_s = 0.0

    async def models(self, request: web.Request) -> web.Response:
        self.listed.append(request.headers.get("User-Agent", ""))
        cards = [{"id": name, "owned_by": self.owner} for name in MODELS]
        return web.json_response({"object": "list", "data": cards})

    async def log(self, request: web.Request) -> web.Response:
        return web.json_response(self.prompts)

    async def version(self, request: web.Request) -> web.Response:
        return web.json_response({"version": "0.32.0"})

    async def all_bodies(self, request: web.Request) -> web.Response:
        return web.json_response(self.bodies)

    async def all_listed(self, request: web.Request) -> web.Response:
        return web.json_response(self.listed)

    async def all_headers(self, request: web.Request) -> web.Response:
        return web.json_response(self.headers)

    async def complete(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        model = body["model"]
        prompts = body["prompt"] if isinstance(body["prompt"], list) else [body["prompt"]]
        if set(prompts) == {"Hi"}:  # tried before the load, and only load is counted
            return await self.tried(request, model, len(prompts))
        self.prompts += prompts
        self.bodies.append({name: body[name] for name in body if name != "prompt"})
        self.headers.append(dict(request.headers))
        self.served[model] += 1
        if model == "storm" or (model == "flaky" and self.served[model] % 4 == 0):
            return web.json_response({"error": {"message": "out of order"}}, status=500)
        hangs = model in ("silent", "stalling") and self.is_past_its_life()
        if hangs and model == "silent":
            await asyncio.sleep(3600)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        with contextlib.suppress(ConnectionResetError):  # a client that was cut off
            await self.stream(response, body, len(prompts), hangs)
        return response

    async def tried(self, request: web.Request, model: str, replies: int) -> web.StreamResponse:
        if model == "storm":
            return web.json_response({"error": {"message": "out of order"}}, status=500)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        body = {"model": "normal", "max_tokens": 1}
        with contextlib.suppress(ConnectionResetError):
            await self.stream(response, body, replies, False)
        return response

    def is_past_its_life(self) -> bool:
        self.begun_s = self.begun_s or time.monotonic()
        return time.monotonic() - self.begun_s > LIVELY_S

    async def stream(
        self, response: web.StreamResponse, body: dict, replies: int, stalls: bool
    ) -> None:
        model, tokens = body["model"], body["max_tokens"]
        if model == "warming":
            await asyncio.sleep(COLD_S if self.served[model] <= COLD else WARM_S)
        if model == "steady":
            await asyncio.sleep(STEADY_S)
        if model == "queued":
            async with self.turn:
                await asyncio.sleep(SERVICE_S)
        if model == "malformed":
            await response.write(b"data: {this is no JSON\n\n")
            return
        for _ in range(10**9 if model == "endless" else tokens):
            for index in range(replies):
                await response.write(token(" word", index=index))
            await asyncio.sleep(3600 if stalls else 0.2 if model == "slow" else PAUSE_S)
        if model == "truncating":
            return
        usage = {"prompt_tokens": 100 * replies, "completion_tokens": tokens * replies}
        if model == "cached":
            usage["prompt_tokens_details"] = {"cached_tokens": 60}
        for index in range(replies):
            await response.write(token("", "length", index))
        await response.write(event(choices=[], usage=usage) + b"data: [DONE]\n\n")


def main() -> None:
    host = Host("vllm" if "vllm" in sys.argv else "tests")
    app = web.Application(client_max_size=2**26)
    app.router.add_get("/v1/models", host.models)
    app.router.add_get("/log", host.log)
    app.router.add_get("/bodies", host.all_bodies)
    app.router.add_get("/headers", host.all_headers)
    app.router.add_get("/listed", host.all_listed)
    app.router.add_get("/version", host.version)
    app.router.add_post("/v1/completions", host.complete)
    web.run_app(app, host="127.0.0.1", port=int(sys.argv[1]), print=None, access_log=None)


if __name__ == "__main__":
    main()
