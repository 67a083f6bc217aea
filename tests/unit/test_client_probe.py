"""What a host is, found out before any load."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from behaviours import SECRET, raw_server, serving, unused_port

from loadgen.client.probe import HostFacts, count_tokens, probe
from loadgen.errors import HostError

CARD = {"id": "demo", "object": "model", "owned_by": "vllm", "max_model_len": 2500}


def models(*ids: str, **fields: Any) -> Any:
    return {"object": "list", "data": [{**CARD, "id": name, **fields} for name in ids]}


async def hang(request: web.Request) -> web.Response:
    await asyncio.sleep(3600)
    return web.Response()


class FakeHost:
    """Answers as vLLM does; a test replaces what it wants to see otherwise."""

    def __init__(self, listing: Any) -> None:
        self.listing = listing
        self.app = web.Application()
        self.resets = 0
        self.most_at_once = 0
        self._counting = 0

    def like_vllm(self) -> "FakeHost":
        router = self.app.router
        router.add_get("/v1/models", self.models)
        router.add_get("/version", self.version)
        router.add_get("/metrics", self.metrics)
        router.add_post("/tokenize", self.tokenize)
        return self

    async def models(self, request: web.Request) -> web.Response:
        if request.headers.get("Authorization") == "Bearer wrong":
            return web.json_response({"error": "Unauthorized"}, status=401)
        return web.json_response(self.listing)

    async def version(self, request: web.Request) -> web.Response:
        return web.json_response({"version": "0.32.0"})

    async def metrics(self, request: web.Request) -> web.Response:
        return web.Response(text="vllm:num_requests_running 0\n")

    async def reset(self, request: web.Request) -> web.Response:
        self.resets += 1
        return web.json_response({"success": True})

    async def tokenize(self, request: web.Request) -> web.Response:
        body = await request.json()
        if body["model"] != "demo":
            return web.json_response({"error": {"message": "no such model"}}, status=404)
        self._counting += 1
        self.most_at_once = max(self.most_at_once, self._counting)
        await asyncio.sleep(0.002)
        self._counting -= 1
        count = len(body["prompt"].split()) + (1 if body["add_special_tokens"] else 0)
        return web.json_response({"count": count, "max_model_len": 2500, "tokens": []})


@asynccontextmanager
async def serve(host: FakeHost) -> AsyncIterator[str]:
    async with serving(host.app) as port:
        yield f"http://127.0.0.1:{port}"


async def refusal(url: str, model: str | None = None, **options: Any) -> str:
    with pytest.raises(HostError) as caught:
        await probe(url, model, options.pop("headers", {}), **options)
    line = str(caught.value)
    assert "\n" not in line
    return line


@pytest.mark.parametrize(
    "name", ["gpu..box", "a" * 64, "gpu\u200bbox", "gpu_box..", "[::1", "xn--"]
)
async def test_what_is_no_name_of_a_host_is_one_line(name: str) -> None:
    assert "gpu" in await refusal(f"http://{name}:8000") or name[:3] in await refusal(
        f"http://{name}:8000"
    )


async def test_vllm_is_recognised_with_all_it_offers() -> None:
    host = FakeHost(models("demo")).like_vllm()
    async with serve(host) as url:
        facts = await probe(url + "/v1/", None, {})
    assert facts == HostFacts(
        url=url,
        model="demo",
        served_models=("demo",),
        max_model_len=2500,
        is_vllm=True,
        version="0.32.0",
        has_metrics=True,
        has_tokenize=True,
    )


async def test_another_engine_offers_less() -> None:
    host = FakeHost({"data": [{"id": "m", "owned_by": "someone"}]})
    host.app.router.add_get("/v1/models", host.models)
    async with serve(host) as url:
        facts = await probe(url, "m", {})
    assert (facts.is_vllm, facts.version, facts.max_model_len) == (False, None, None)
    assert not any((facts.has_metrics, facts.has_tokenize))


async def test_an_adapter_has_the_window_of_its_base_model() -> None:
    listing = models("demo")
    listing["data"].append({"id": "tuned", "owned_by": "vllm", "parent": "demo"})
    async with serve(FakeHost(listing).like_vllm()) as url:
        assert (await probe(url, "tuned", {})).max_model_len == 2500


async def test_a_page_for_any_path_is_neither_metrics_nor_version() -> None:
    async def page(request: web.Request) -> web.Response:
        return web.Response(text="<html>", content_type="text/html")

    host = FakeHost({"data": [{"id": "m"}]})
    host.app.router.add_get("/v1/models", host.models)
    host.app.router.add_get("/{anything}", page)
    async with serve(host) as url:
        facts = await probe(url, None, {})
    assert (facts.has_metrics, facts.version, facts.is_vllm) == (False, None, False)


async def test_a_model_that_is_not_served_is_refused_with_the_served_ones() -> None:
    async with serve(FakeHost(models("a", "b")).like_vllm()) as url:
        line = await refusal(url, "c")
    assert "'c'" in line
    assert "choose from a, b" in line


async def test_at_most_ten_models_are_listed() -> None:
    async with serve(FakeHost(models(*(f"m{i}" for i in range(25)))).like_vllm()) as url:
        line = await refusal(url, "x")
    assert "m9, and 15 more" in line
    assert "m10" not in line


async def test_names_of_models_are_shortened() -> None:
    async with serve(FakeHost(models("x" * 5_000, "a\nb")).like_vllm()) as url:
        line = await refusal(url, None)
    assert f"{'x' * 50}" in line
    assert "a b" in line
    assert len(line) < 200


async def test_one_of_several_models_must_be_chosen() -> None:
    async with serve(FakeHost(models("a", "b")).like_vllm()) as url:
        assert "serves a, b: choose one with --model" in await refusal(url)


async def test_a_host_that_lists_no_model_is_taken_at_the_users_word() -> None:
    async with serve(FakeHost({"data": []}).like_vllm()) as url:
        assert (await probe(url, "local/path", {})).model == "local/path"
        assert "serves no model" in await refusal(url)


async def test_a_refused_key_names_the_variables() -> None:
    async with serve(FakeHost(models("demo")).like_vllm()) as url:
        line = await refusal(url, headers={"Authorization": "Bearer wrong"})
    assert "KVSWARM_API_KEY or OPENAI_API_KEY" in line
    assert "refuses the API key it was given (HTTP 401)" in line
    assert "Bearer" not in line


@pytest.mark.parametrize(
    ("status", "kind", "text"),
    [
        (404, "application/json", '{"detail":"Not Found"}'),
        (200, "text/html", "<title>Welcome</title>"),
        (200, "application/json", '["a"]'),
        (200, "application/json", '{"models":[]}'),
        (500, "text/plain", "boom"),
    ],
)
async def test_a_host_without_the_api_is_refused(status: int, kind: str, text: str) -> None:
    async def answer(request: web.Request) -> web.Response:
        return web.Response(status=status, content_type=kind, text=text)

    host = FakeHost(None)
    host.app.router.add_get("/v1/models", answer)
    async with serve(host) as url:
        assert f"no OpenAI API: /v1/models answered HTTP {status}" in await refusal(url)


async def test_a_key_a_host_echoes_is_not_repeated() -> None:
    async def echo(request: web.Request) -> web.Response:
        return web.Response(status=500, text=f"no such key: {request.headers['X-Key']}")

    host = FakeHost(None)
    host.app.router.add_get("/v1/models", echo)
    async with serve(host) as url:
        assert "'no such key: ***'" in await refusal(url, headers={"X-Key": SECRET})


async def test_a_redirect_is_shown_rather_than_followed() -> None:
    async def moved(request: web.Request) -> web.Response:
        key = request.headers.get("X-Key", "")
        raise web.HTTPPermanentRedirect(f"https://elsewhere/v1/models{key and '?key='}{key}")

    host = FakeHost(None)
    host.app.router.add_get("/v1/models", moved)
    async with serve(host) as url:
        assert "redirects to https://elsewhere/v1/models:" in await refusal(url)
        assert "v1/models?key=***:" in await refusal(url, headers={"X-Key": SECRET})


async def test_a_host_that_does_not_answer_is_refused() -> None:
    host = FakeHost(None)
    host.app.router.add_get("/v1/models", hang)
    async with serve(host) as url:
        assert "did not answer /v1/models within 0.1 s" in await refusal(url, timeout_s=0.1)


async def test_an_optional_route_that_hangs_is_missing() -> None:
    host = FakeHost(models("demo"))
    host.app.router.add_get("/v1/models", host.models)
    for path in ("/version", "/metrics"):
        host.app.router.add_get(path, hang)
    async with serve(host) as url:
        facts = await probe(url, None, {}, timeout_s=0.2)
    assert (facts.version, facts.has_metrics) == (None, False)


async def test_a_refused_connection_is_said() -> None:
    port = unused_port()
    assert f"127.0.0.1:{port} refused the connection" in await refusal(f"http://127.0.0.1:{port}")


async def test_an_unknown_name_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    async def unknown(*_: Any, **__: Any) -> Any:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", unknown)
    assert "host name gpu-box is unknown" in await refusal("http://gpu-box:8000/v1")


async def test_tls_towards_a_plain_port_is_said() -> None:
    async with raw_server(b"HTTP/1.1 400 Bad Request\r\n\r\n") as port:
        assert f"TLS with 127.0.0.1:{port} failed" in await refusal(f"https://127.0.0.1:{port}")


async def test_a_port_of_another_protocol_is_said() -> None:
    async with raw_server(b"SSH-2.0-OpenSSH_9\r\n") as port:
        assert "does not speak HTTP" in await refusal(f"http://127.0.0.1:{port}")


async def test_an_address_without_scheme_is_said() -> None:
    assert "write http://127.0.0.1:8000" in await refusal("127.0.0.1:8000")


async def test_tokens_are_counted_in_order_and_a_few_at_once() -> None:
    host = FakeHost(models("demo")).like_vllm()
    texts = ["word " * length for length in range(1, 20)]
    async with serve(host) as url:
        counts = await count_tokens(url, "demo", texts, {}, concurrency=3)
    assert counts == list(range(1, 20))
    assert host.most_at_once == 3


async def test_a_host_that_cannot_count_is_refused() -> None:
    host = FakeHost(models("demo")).like_vllm()
    async with serve(host) as url:
        with pytest.raises(HostError, match="HTTP 404 'no such model': give --tokenizer"):
            await count_tokens(url, "other", ["a"] * 20, {})
