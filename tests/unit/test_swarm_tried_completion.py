"""One completion before the load: what of its answers is said, and what it must not do."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web

from loadgen.client.probe import HostFacts
from loadgen.client.settings import ClientSettings
from loadgen.errors import HostError
from loadgen.swarm.leading.supervisor import Supervisor
from loadgen.swarm.leading.tried_completion import try_completion

TOKEN = b'data: {"choices":[{"index":0,"text":"a","finish_reason":null}]}\n\n'
NO_CHAT = "This is a chat model and not supported in the v1/completions endpoint."
NO_COMPLETIONS = "The model does not support Completions API"
NO_DEPLOYMENT = "The API deployment for this resource does not exist"
END = b'data: {"choices":[{"index":0,"text":"a","finish_reason":"length"}]}\n\ndata: [DONE]\n\n'
Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


def refusing(status: int, message: str) -> Answer:
    async def answer(request: web.Request) -> web.StreamResponse:
        return web.json_response({"error": {"message": message}}, status=status)

    return answer


async def streaming(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    await response.write(TOKEN + END)
    return response


async def endless(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    while True:
        await response.write(TOKEN)
        await asyncio.sleep(0.02)


async def silent(request: web.Request) -> web.StreamResponse:
    await asyncio.sleep(30)
    raise AssertionError


@asynccontextmanager
async def host(completions: Answer, chat: Answer) -> AsyncIterator[tuple[str, list[dict]]]:
    bodies: list[dict] = []

    def noted(answer: Answer) -> Answer:
        async def note(request: web.Request) -> web.StreamResponse:
            bodies.append(await request.json())
            return await answer(request)

        return note

    app = web.Application()
    app.router.add_post("/v1/completions", noted(completions))
    app.router.add_post("/v1/chat/completions", noted(chat))
    runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield "http://127.0.0.1:{1}".format(*runner.addresses[0]), bodies
    finally:
        await runner.cleanup()


def tried(completions: Answer, chat: Answer = streaming, as_list: bool = False) -> str:
    async def ask() -> str:
        async with host(completions, chat) as (url, bodies):
            settings = ClientSettings(
                url=url, model="m", headers={"Authorization": "Bearer secret-12"}
            )
            facts = HostFacts(
                url=url,
                model="m",
                served_models=("m", "n\x1b[2J\nkvswarm: all is well"),
                max_model_len=None,
                is_vllm=False,
                version=None,
                has_metrics=False,
                has_tokenize=False,
            )
            said = await try_completion(settings, facts, 4, as_list)
            assert len(bodies) == 1
            words = bodies[0]["prompt"]
            assert len("".join(words).split()) == 1, "too few tokens for a block of any cache"
            return said

    return asyncio.run(ask())


@pytest.mark.parametrize(
    ("completions", "chat", "said"),
    [
        (refusing(404, "Not Found"), streaming, "404 for /v1/completions: try --endpoint chat"),
        (refusing(405, "Not Allowed"), streaming, "405 for /v1/completions: try --endpoint chat"),
        (refusing(404, "Not Found"), refusing(404, ""), "is it the address of an inference server"),
        (
            refusing(404, NO_CHAT),
            streaming,
            r"try --endpoint chat \(HTTP 404: This is a chat model",
        ),
        (refusing(400, NO_COMPLETIONS), streaming, "HTTP 400 for /v1/completions: try --endpoint"),
        (refusing(501, NO_COMPLETIONS), streaming, "HTTP 501 for /v1/completions: try --endpoint"),
        (refusing(400, NO_COMPLETIONS), refusing(400, ""), "choose --model from m, n"),
        (refusing(404, NO_DEPLOYMENT), refusing(404, NO_DEPLOYMENT), f"server.*{NO_DEPLOYMENT}"),
        (refusing(404, NO_DEPLOYMENT), streaming, "try --endpoint chat"),
        (refusing(404, "The model `m` does not exist"), streaming, "choose --model from m, n"),
        (refusing(404, "No endpoint has the model m"), refusing(404, ""), "choose --model from"),
        (refusing(400, "unknown model"), streaming, "choose --model from m, n"),
        (refusing(401, "no"), streaming, "refuses the API key it was given"),
        (refusing(403, "not secret-12"), streaming, r"\(HTTP 403: not \*\*\*\).*OPENAI_API_KEY"),
        (refusing(422, "top_k"), streaming, r"HTTP 422: top_k\): see .*--extra-body"),
    ],
)
def test_what_every_request_would_meet_is_said_at_once(
    completions: Answer, chat: Answer, said: str
) -> None:
    with pytest.raises(HostError, match=said) as error:
        tried(completions, chat)
    assert str(error.value).isprintable()
    assert "secret-12" not in str(error.value)


@pytest.mark.parametrize(
    ("status", "message"), [(500, "full"), (503, "busy"), (429, "slow down"), (301, "")]
)
def test_what_another_request_may_be_spared_is_only_noted(status: int, message: str) -> None:
    assert f"HTTP {status}: {message}" in tried(refusing(status, message))


@pytest.mark.parametrize(
    ("answer", "as_list"), [(streaming, False), (endless, False), (silent, False), (endless, True)]
)
def test_a_host_that_is_slow_or_never_ends_is_loaded(answer: Answer, as_list: bool) -> None:
    began = time.monotonic()
    assert tried(answer, as_list=as_list) == ""
    assert time.monotonic() - began < 20, "silence lasts 30 s"


def test_swarms_of_one_supervisor_try_once(tmp_path: Path) -> None:
    first, second = (Supervisor({}, None, (), tmp_path) for _ in range(2))
    assert not first.has_tried("this")
    first.note_tried("this")
    assert second.has_tried("this")
    assert not second.has_tried("that")
    alone = Supervisor({}, None, ())
    alone.note_tried("this")
    assert not alone.has_tried("this")
