"""A server of a model's, in a thread: one route, whose answers a test gives."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

Answer = Callable[[dict[str, Any]], tuple[int, Any]]


@dataclass
class ModelHost:
    """`answer` gets the body and gives status and content; what came is kept."""

    answer: Answer
    url: str = ""
    bodies: list[dict[str, Any]] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)
    inside: int = 0
    most_inside: int = 0

    async def handle(self, request: web.Request) -> web.Response:
        self.inside += 1
        self.most_inside = max(self.most_inside, self.inside)
        body = await request.json()
        self.bodies.append(body)
        self.keys.append(request.headers.get("Authorization"))
        await asyncio.sleep(0.02)
        self.inside -= 1
        status, content = self.answer(body)
        if isinstance(content, web.Response):
            return content
        if isinstance(content, str):
            return web.Response(status=status, text=content)
        return web.json_response(content, status=status)


@contextmanager
def model_host(route: str, answer: Answer) -> Iterator[ModelHost]:
    host, loop = ModelHost(answer), asyncio.new_event_loop()
    app = web.Application()
    app.router.add_post(route, host.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    async def start() -> int:
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        return int(runner.addresses[0][1])

    try:
        port = asyncio.run_coroutine_threadsafe(start(), loop).result(10)
        host.url = f"http://127.0.0.1:{port}"
        yield host
    finally:
        asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()
