"""A router before several engines, started by tests as a service; and targets that have it.

    python fake_router.py --port PORT URL,URL

Each engine has its turn. One that refuses three times is left out; until then it is a 502.
"""

import argparse
from collections import Counter
from collections.abc import AsyncIterator
from itertools import count
from pathlib import Path

import aiohttp
from aiohttp import web

MOST_REFUSALS = 3
CATALOG = """
[services.engine]
role = "engine"
argv = ["{python}", "ENGINE", "--port", "{port}", "--window", "4096", "--counters", "acme_"]
ready = "/health"
reset = "/reset"
metrics = "/stats"
counters = "acme"

[services.front]
role = "router"
argv = ["{python}", "ROUTER", "--port", "{port}", "{engine_urls}"]
ready = "/health"

[counters.acme]
prompt_tokens = 'acme_in{of="prompt"}'
prefix_cache_hits = 'acme_in{of="cache"}'
running = "acme_at_work"

[targets.pair]
services = ["engine", "front"]

[targets.single]
services = ["engine"]
"""


def fleet_catalog(folder: Path) -> Path:
    """A targets file in the folder: `pair` is engine-1 and engine-2 behind a front."""
    here = Path(__file__)
    text = CATALOG.replace("ENGINE", str(here.with_name("fake_engine.py")))
    path = folder / "targets.toml"
    path.write_text(text.replace("ROUTER", str(here)))
    return path


class FakeRouter:
    def __init__(self, urls: list[str]) -> None:
        self._urls = urls
        self._turns = count()
        self._refusals = Counter[str]()

    async def session(self, app: web.Application) -> AsyncIterator[None]:
        async with aiohttp.ClientSession() as self._session:
            yield

    async def forward(self, request: web.Request) -> web.StreamResponse:
        living = [url for url in self._urls if self._refusals[url] < MOST_REFUSALS]
        if not living:
            return web.Response(status=502, text="no engine is left")
        url, body = living[next(self._turns) % len(living)], await request.read()
        response = web.StreamResponse()
        try:
            asked = self._session.request(request.method, url + request.path, data=body)
            async with asked as answer:
                response.set_status(answer.status)
                response.headers.update(
                    {
                        k: v
                        for k, v in answer.headers.items()
                        if k in ("Content-Type", "X-Served-By")
                    }
                )
                await response.prepare(request)
                async for chunk in answer.content.iter_any():
                    await response.write(chunk)
        except aiohttp.ClientConnectionError:
            if response.prepared:
                raise  # which breaks off the reply
            self._refusals[url] += 1
            return web.Response(status=502, text=f"{url} is gone")
        return response


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("urls")
    parsed = parser.parse_args()
    router = FakeRouter(parsed.urls.split(","))
    app = web.Application(client_max_size=2**26)
    app.cleanup_ctx.append(router.session)
    app.router.add_route("*", "/{path:.*}", router.forward)
    web.run_app(app, host="127.0.0.1", port=parsed.port, print=None, access_log=None)


if __name__ == "__main__":
    main()
