"""Whom a run watches, and what it waits for."""

import asyncio
import math
import time
from collections.abc import Mapping
from functools import partial
from types import SimpleNamespace

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from loadgen.client.failures import ConnectFailed
from loadgen.errors import HostError
from loadgen.stats.clock import RunClock
from loadgen.stats.server_counters import ServerSample
from loadgen.swarm.leading.watches import (
    Scraper,
    ServerWatch,
    ServiceWatch,
    _lives,
    sources_of,
)

KEY = {"Authorization": "Bearer secret"}


def test_headers_go_to_the_host_alone() -> None:
    assert sources_of("http://host:8000", {}, KEY, "m").engine.headers == KEY
    for metrics_url in ("http://host:9000/metrics", "http://other:8000/metrics"):
        told = {"sources": {"engine": {"metrics_url": metrics_url, "series": {"running": "r"}}}}
        assert sources_of("http://host:8000", told, KEY).engine.headers == {}
    assert "secret" not in repr(sources_of("http://host:8000", {}, KEY))


def test_an_engine_without_metrics_is_not_read_as_another() -> None:
    told = {"sources": {"engine": {"metrics_url": None, "counters": "none", "series": {}}}}
    engine = sources_of("http://host:8000", told).engine
    assert (engine.metrics_url, engine.series) == ("http://host:8000/metrics", {})
    assert sources_of("http://host:8000", {}).engine.series


def test_after_a_reset_engine_and_replicas_count_from_the_last_sample() -> None:
    watch = ServerWatch(lambda sample: None, lambda: None)

    def take(at_s: float, computed: int, cached: int, running: int) -> None:
        sample = ServerSample(
            at_s,
            prompt_tokens=computed + cached,
            computed_prompt_tokens=computed,
            cached_prompt_tokens=cached,
            external_prompt_tokens=0,
            running=running,
        )
        watch._take(sample, {"one": sample})

    watch.reset()
    take(0.0, 0, 0, 0)
    take(1.0, 900, 0, 9)
    take(2.0, 1000, 0, 2)
    watch._take(ServerSample(2.5), {"one": ServerSample(2.5)})
    watch.reset()
    assert watch.note is None
    take(3.0, 1100, 300, 1)
    for each in (watch.counted, watch.replicas["one"]):
        figures = each.figures()
        assert (figures["computed_prompt_tokens"], figures["hit_rate"]) == (100, 0.75)
        assert (each.count, figures["peak_running"]) == (2, 2)
    assert watch.whole.figures()["computed_prompt_tokens"] == 1100


def test_figures_that_end_before_the_run_are_told_with_their_end() -> None:
    watch = ServerWatch(lambda sample: None, lambda: None)
    for at_s, tokens in ((0.0, 0), (59.0, 900), (61.0, None)):
        assert watch.note is None
        watch._take(ServerSample(at_s, prompt_tokens=tokens), {})
    assert watch.note is not None
    assert "figures of the engine end at 59.0 s" in watch.note
    watch._take(ServerSample(600.0), {})
    assert "no counters of the engine after 59.0 s" in watch.note


def test_figures_that_lack_the_first_requests_say_so_until_they_are_counted_anew() -> None:
    watch = ServerWatch(lambda sample: None, lambda: None)
    told = {"models": frozenset(), "lack": "", "began_late": True}
    watch._scraper = SimpleNamespace(**told)  # type: ignore[assignment]
    for at_s in (0.0, 1.0):
        watch._take(ServerSample(at_s, prompt_tokens=900), {})
    assert watch.note is not None
    assert "lack what it did before" in watch.note
    watch.reset()
    watch._take(ServerSample(2.0, prompt_tokens=900), {})
    assert watch.note is None


def test_figures_that_begin_behind_the_start_are_told_to_be_unknown() -> None:
    watch = ServerWatch(lambda sample: None, lambda: None)
    watch._take(ServerSample(0.0), {})
    watch._take(ServerSample(1.0, prompt_tokens=900), {})
    watch._take(ServerSample(2.0, prompt_tokens=990), {})
    assert watch.note is not None
    assert "told none at the start" in watch.note


async def test_the_load_does_not_wait_for_metrics_that_hang() -> None:
    async def hang(request: web.Request) -> web.Response:
        await asyncio.sleep(30)
        return web.Response()

    app = web.Application()
    app.router.add_get("/metrics", hang)
    samples: list[ServerSample] = []
    async with TestServer(app) as server:
        sources = sources_of(str(server.make_url("")), {})

        def take(sample: ServerSample, replicas: Mapping[str, ServerSample]) -> None:
            samples.append(sample)

        dead = partial(_lives, None, lambda: -math.inf)
        scraper = Scraper(sources, RunClock(time.time()), take, lambda: None, dead)
        begun_s = time.monotonic()
        async with scraper.running():
            assert time.monotonic() - begun_s < 1.5
            assert samples == []
    assert [each.reachable for each in samples] == [None]


async def test_a_first_page_that_comes_behind_the_first_requests_is_noticed() -> None:
    async def page(request: web.Request) -> web.Response:
        await asyncio.sleep(1.5)
        return web.Response(text="vllm:prompt_tokens_total 900\n")

    app = web.Application()
    app.router.add_get("/metrics", page)
    async with TestServer(app) as server, asyncio.timeout(20):
        sources, dead = sources_of(str(server.make_url("")), {}), partial(_lives, None, time.time)
        clock = RunClock(time.time())
        scraper = Scraper(sources, clock, lambda *_: None, lambda: None, dead)
        async with scraper.running():
            while not scraper.began_late:  # noqa: ASYNC110 (plain data)
                await asyncio.sleep(0.05)


@pytest.mark.parametrize(
    ("tells_models", "replies", "dies"),
    [(True, False, False), (False, True, False), (False, False, True)],
)
async def test_a_host_that_only_refuses_its_metrics_is_alive(
    tells_models: bool, replies: bool, dies: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def hang_up(request: web.Request) -> web.Response:
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    async def models(request: web.Request) -> web.Response:
        return web.json_response({"data": []})

    real_sleep = asyncio.sleep
    monkeypatch.setattr(asyncio, "sleep", lambda seconds: real_sleep(seconds / 20))
    app = web.Application()
    app.router.add_get("/metrics", hang_up)
    app.router.add_get("/v1/models", models if tells_models else hang_up)
    deaths: list[float] = []
    clock = RunClock(time.time())
    async with TestServer(app) as server:
        url = str(server.make_url(""))
        lives = partial(_lives, url, clock.now_s if replies else lambda: -math.inf)
        scraper = Scraper(
            sources_of(url, {}), clock, lambda *_: None, lambda: deaths.append(clock.now_s()), lives
        )
        async with scraper.running():
            await real_sleep(1.0)
    assert len(deaths) == dies
    assert scraper.lack == "cannot be reached"


def test_names_of_models_do_nothing_to_the_terminal() -> None:
    watch = ServerWatch(lambda sample: None, lambda: None)
    names = frozenset({"a", "b\x1b[2J\nkvswarm: all is well", "c" * 99})
    watch._scraper = SimpleNamespace(models=names, lack="")  # type: ignore[assignment]
    assert watch.note is not None
    assert watch.note.isprintable()
    assert f"(a, b?[2J kvswarm: all is well, {'c' * 59}…)" in watch.note


async def test_a_service_that_this_process_cannot_ask_is_not_silent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []

    class OutOfDescriptors:
        async def ask(self, method: str, path: str) -> None:
            asked.append(path)
            if len(asked) == 50:
                raise asyncio.CancelledError
            cause = ConnectFailed("this process has no file descriptors left")
            cause.is_own = True
            raise HostError("cannot be used") from cause

    real_sleep = asyncio.sleep
    monkeypatch.setattr(asyncio, "sleep", lambda seconds: real_sleep(0))
    watch = ServiceWatch(lambda said: None, max_silence_s=60.0)
    with pytest.raises(asyncio.CancelledError):
        await watch._watch(OutOfDescriptors(), "/health")  # type: ignore[arg-type]
    assert len(asked) == 50
