import asyncio
import os
import re
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import asdict
from email.utils import formatdate

import orjson
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from loadgen.client import host
from loadgen.stats import server_metrics
from loadgen.stats.memory import TreeUse
from loadgen.stats.server_counters import COLUMNS, ServerSample, server_figures
from loadgen.stats.server_metrics import MetricsScraper, MetricsSource, MetricsSources
from loadgen.targets.catalog import usual_series

ENGINE_PAGE = """\
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="model"} 3.0
vllm:num_requests_running{engine="1",model_name="model"} 1.0
vllm:num_requests_waiting{engine="0",model_name="model"} 2.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="model",reason="capacity"} 2.0
vllm:kv_cache_usage_perc{engine="0",model_name="model"} 0.75
vllm:kv_cache_usage_perc{engine="1",model_name="model"} 0.25
vllm:prefix_cache_queries_total{engine="0",model_name="model"} 27978.0
vllm:prefix_cache_queries_created{engine="0",model_name="model"} 1.7952302736571438e+09
vllm:prefix_cache_hits_total{engine="0",model_name="model"} 2560.0
vllm:external_prefix_cache_queries_total{engine="0",model_name="model"} 25418.0
vllm:external_prefix_cache_hits_total{engine="0",model_name="model"} 18304.0
vllm:num_preemptions_total{engine="0",model_name="model"} 0.0
vllm:prompt_tokens_total{engine="0",model_name="model"} 27978.0
vllm:prompt_tokens_by_source_total{engine="0",model_name="model",source="local_compute"} 7000.0
vllm:prompt_tokens_by_source_total{engine="1",model_name="model",source="local_compute"} 114.0
vllm:prompt_tokens_by_source_total{engine="0",model_name="model",source="local_cache_hit"} 2560.0
vllm:prompt_tokens_by_source_total{engine="0",model_name="m",source="external_kv_transfer"} 18304.0
vllm:prompt_tokens_cached_by_source_total{engine="0",model_name="model",source="device"} 2560.0
vllm:generation_tokens_total{engine="0",model_name="model"} 100.0
vllm:request_success_total{engine="0",finished_reason="stop",model_name="model"} 4.0
vllm:request_success_total{engine="0",finished_reason="length",model_name="model"} 16.0
"""
LMCACHE_FRESH = """\
lmcache_mp_l1_memory_usage_bytes{backend="dram",l1_tag="_default"} 0.0
lmcache_mp_active_prefetch_jobs 0.0
"""
LMCACHE_PAGE = """\
lmcache_mp_l1_memory_usage_bytes{backend="dram",l1_tag="_default"} 2.686976e+06
lmcache_mp_l1_evicted_chunks_total{l1_tag="_default"} 5.0
lmcache_mp_l1_write_chunks_total{cache_salt="",l1_tag="_default"} 25.0
lmcache_mp_l1_read_chunks_total{cache_salt="",l1_tag="_default"} 61.0
lmcache_mp_lookup_requested_tokens_total{cache_salt="",model_name="model"} 13056.0
lmcache_mp_lookup_hit_l1_tokens_total{cache_salt="",model_name="model"} 7808.0
lmcache_mp_lookup_hit_l2_tokens_total{cache_salt="",model_name="model"} 128.0
"""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Serve = Callable[[Handler], Awaitable[str]]


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    servers: list[TestServer] = []

    async def start(handler: Handler) -> str:
        app = web.Application()
        app.router.add_get("/metrics", handler)
        servers.append(TestServer(app))
        await servers[-1].start_server()
        return str(servers[-1].make_url("/"))

    yield start
    for server in servers:
        await server.close()


def page(text: str | bytes, status: int = 200) -> Handler:
    async def handler(request: web.Request) -> web.StreamResponse:
        body = text.encode() if isinstance(text, str) else text
        return web.Response(body=body, status=status)

    return handler


def engine(url: str) -> MetricsSources:
    name, series = usual_series("engine")
    return MetricsSources(MetricsSource(f"{url.rstrip('/')}/metrics", series, name))


def cache(url: str) -> MetricsSources:
    name, series = usual_series("cache")
    return MetricsSources(cache=MetricsSource(f"{url.rstrip('/')}/metrics", series, name))


async def sample(sources: MetricsSources) -> ServerSample:
    async with MetricsScraper(sources) as scraper:
        return await scraper.scrape(12.5)


async def test_an_engines_figures_are_summed_over_its_replicas(serve: Serve) -> None:
    got = await sample(engine(await serve(page(ENGINE_PAGE))))
    assert got == ServerSample(
        at_s=12.5,
        reachable=True,
        prompt_tokens=27978,
        computed_prompt_tokens=7114,
        cached_prompt_tokens=2560,
        external_prompt_tokens=18304,
        generation_tokens=100,
        prefix_cache_queries=27978,
        prefix_cache_hits=2560,
        external_prefix_cache_queries=25418,
        external_prefix_cache_hits=18304,
        request_success=20,
        num_preemptions=0,
        running=4,
        waiting=2,
        kv_cache_usage=0.5,
    )


async def test_counts_are_whole_numbers_for_the_csv(serve: Serve) -> None:
    got = await sample(engine(await serve(page(ENGINE_PAGE))))
    assert str(got.prompt_tokens) == "27978"


async def test_lmcaches_figures(serve: Serve) -> None:
    got = await sample(cache(await serve(page(LMCACHE_PAGE))))
    assert got.reachable is None
    assert got.lmcache_lookup_requested_tokens == 13056
    assert got.lmcache_lookup_hit_l1_tokens == 7808
    assert got.lmcache_lookup_hit_l2_tokens == 128
    assert got.lmcache_l1_evicted_chunks == 5
    assert (got.lmcache_l1_written_chunks, got.lmcache_l1_read_chunks) == (25, 61)
    assert got.lmcache_l1_memory_usage_bytes == 2686976


async def test_an_lmcache_that_has_not_counted_yet_stands_at_zero(serve: Serve) -> None:
    got = await sample(cache(await serve(page(LMCACHE_FRESH))))
    assert got.lmcache_lookup_requested_tokens == 0
    assert got.lmcache_l1_memory_usage_bytes == 0


@pytest.mark.parametrize(
    ("body", "status"),
    [("no such page", 404), ("oops", 500), (b"\xff\x00vllm:prompt_tokens_total{", 200), ("", 200)],
)
async def test_a_host_without_metrics_is_reachable_and_unknown(
    serve: Serve, body: str | bytes, status: int
) -> None:
    got = await sample(engine(await serve(page(body, status))))
    assert got == ServerSample(12.5, reachable=True)


async def test_why_there_is_no_page_is_known(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    async def hang(request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(30)
        return web.Response()

    async def lack(handler: Handler) -> str:
        async with MetricsScraper(engine(await serve(handler))) as scraper:
            await scraper.scrape(0.0)
            return scraper.lack

    monkeypatch.setattr(server_metrics, "_TIMEOUT_S", 0.5)
    assert await lack(hang) == "does not answer within 0.5 s"
    assert await lack(page("moved", 302)) == "answers HTTP 302"
    assert await lack(page("other_counters 1")) == ""


async def test_a_value_that_is_no_number_is_unknown(serve: Serve) -> None:
    got = await sample(engine(await serve(page("vllm:num_requests_running NaN"))))
    assert got.running is None


@pytest.mark.parametrize(
    "told",
    ['m{e="0"} 1e20', "m 18446744073709551616", "m -1e300", 'm{e="0"} 1e308\nm{e="1"} 1e308'],
)
@pytest.mark.parametrize("name", ["vllm:num_requests_running", "vllm:prompt_tokens_total"])
async def test_a_value_that_is_no_possible_count_is_unknown(
    serve: Serve, told: str, name: str
) -> None:
    got = await sample(engine(await serve(page(re.sub("(?m)^m", name, told)))))
    assert (got.running, got.prompt_tokens) == (None, None)


async def test_a_sum_that_is_too_large_for_json_is_no_integer(serve: Serve) -> None:
    text = "".join(f'vllm:num_requests_running{{e="{n}"}} 9e17\n' for n in range(30))
    got = await sample(engine(await serve(page(text))))
    assert orjson.loads(orjson.dumps(asdict(got)))["running"] == pytest.approx(2.7e19)


async def test_an_engine_that_died_is_told_from_one_that_is_slow(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def hang(request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(30)
        return web.Response()

    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    dead = await sample(engine(f"http://127.0.0.1:{port}"))
    assert dead == ServerSample(12.5, reachable=False)
    monkeypatch.setattr(server_metrics, "_TIMEOUT_S", 0.05)
    slow = await sample(engine(await serve(hang)))
    assert slow == ServerSample(12.5, reachable=None)


async def test_an_endless_page_is_given_up(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    async def endless(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        while True:
            await response.write(b"vllm:num_requests_running 1\n" * 100)

    monkeypatch.setattr(host, "MAX_BODY_BYTES", 50_000)
    got = await sample(engine(await serve(endless)))
    assert got == ServerSample(12.5, reachable=True)


class OneGpu:
    def used_mb(self) -> float:
        return 42.0


async def test_memory_is_that_of_the_processes_and_gpus_named() -> None:
    got = await sample(MetricsSources(MetricsSource(pid=os.getpid()), gpu=OneGpu()))  # type: ignore[arg-type]
    assert got.engine_rss_mb is not None
    assert got.engine_rss_mb > 5
    assert got.engine_cpu_s is not None
    assert got.engine_cpu_s > 0
    assert (got.lmcache_rss_mb, got.gpu_memory_mb) == (None, 42.0)


async def test_an_engine_that_has_gone_keeps_the_cpu_time_that_it_had(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    uses = {1: TreeUse(100.0, 7.0), 2: TreeUse(50.0, 5.0)}
    monkeypatch.setattr(server_metrics, "tree_use", uses.get)
    places = {f"e-{pid}": MetricsSource(pid=pid) for pid in uses}
    async with MetricsScraper(MetricsSources(places["e-1"], places)) as scraper:
        both = await scraper.scrape(1.0)
        uses[1] = TreeUse(100.0, 8.5)
        del uses[2]
        one = await scraper.scrape(2.0)
    assert (both.engine_cpu_s, both.engine_rss_mb) == (12.0, 150.0)
    assert (one.engine_cpu_s, one.engine_rss_mb) == (13.5, 100.0)


def test_the_columns_are_the_samples_fields_time_first() -> None:
    assert tuple(asdict(ServerSample(1.0))) == COLUMNS
    assert COLUMNS[:2] == ("at_s", "reachable")


def replicas(*urls: str) -> MetricsSources:
    name, series = usual_series("engine")
    sources = [MetricsSource(f"{url.rstrip('/')}/metrics", series, name) for url in urls]
    return MetricsSources(
        sources[0], {f"e-{number}": each for number, each in enumerate(sources, 1)}
    )


async def test_engines_behind_a_router_are_added_up_and_told_apart(serve: Serve) -> None:
    second = ENGINE_PAGE.replace("27978.0", "100.0").replace("} 0.75", "} 0.25")
    urls = [await serve(page(text)) for text in (ENGINE_PAGE, second)]
    async with MetricsScraper(replicas(*urls)) as scraper:
        got = await scraper.scrape(1.0)
        each = dict(scraper.replicas)
    assert (got.reachable, got.prompt_tokens, got.running) == (True, 28078, 8)
    assert got.kv_cache_usage == pytest.approx((0.5 + 0.25) / 2)
    assert [each[name].prompt_tokens for name in ("e-1", "e-2")] == [27978, 100]


@pytest.mark.parametrize(("age_s", "told"), [(1800.0, 100), (-1.0, 140)])
async def test_the_age_of_an_engine_that_appears_is_by_the_clock_of_its_host(
    serve: Serve, age_s: float, told: int
) -> None:
    ahead_s = time.time() + 3600.0
    first = 'vllm:prompt_tokens_total{engine="0"} 100\n'
    more = first + first.replace("0", "1", 1).replace("100", "40")
    born = f'vllm:prompt_tokens_created{{engine="1"}} {ahead_s - age_s}\n'
    pages = iter([first, more + born])

    async def answer(request: web.Request) -> web.Response:
        date = formatdate(ahead_s, usegmt=True)
        return web.Response(text=next(pages), headers={"Date": date})

    async with MetricsScraper(engine(await serve(answer))) as scraper:
        await scraper.scrape(0.0)
        assert (await scraper.scrape(1.0)).prompt_tokens == told


def answering(*statuses: int) -> Handler:
    """The engine's page with these statuses, one after the other."""
    left = iter(statuses)

    async def answer(request: web.Request) -> web.Response:
        return web.Response(text=ENGINE_PAGE, status=next(left))

    return answer


async def test_an_engine_that_tells_nothing_for_a_while_takes_nothing_from_the_sum(
    serve: Serve,
) -> None:
    urls = [await serve(page(ENGINE_PAGE)), await serve(answering(200, 500, 200))]
    async with MetricsScraper(replicas(*urls)) as scraper:
        sums = [(await scraper.scrape(float(at))).prompt_tokens for at in range(3)]
    assert sums == [2 * 27978] * 3


async def test_an_engine_that_answers_late_brings_no_earlier_work_into_the_sum(
    serve: Serve,
) -> None:
    urls = [await serve(page(ENGINE_PAGE)), await serve(answering(500, 200, 200))]
    async with MetricsScraper(replicas(*urls)) as scraper:
        samples = [await scraper.scrape(float(at)) for at in range(3)]
        own = scraper.replicas["e-1"].prompt_tokens
    assert [each.prompt_tokens for each in samples] == [None, 2 * 27978, 2 * 27978]
    assert own == 27978
    assert samples[0].running == 4, "what is of the moment stays"
    figures = server_figures(samples[0], samples[2], samples[1:2])
    assert figures["computed_prompt_tokens"] is None, "where the rise began is not known"


async def test_a_fleet_is_reachable_where_any_engine_is(serve: Serve) -> None:
    with socket.socket() as unheard:
        unheard.bind(("127.0.0.1", 0))
        gone = f"http://127.0.0.1:{unheard.getsockname()[1]}"
        got = await sample(replicas(await serve(page(ENGINE_PAGE)), gone))
        none = await sample(replicas(gone, gone))
    assert (got.reachable, got.prompt_tokens) == (True, 27978)
    assert none.reachable is False


async def test_what_a_dead_engine_had_stays_in_the_sum_and_in_its_own_figures(serve: Serve) -> None:
    second = TestServer(web.Application())
    second.app.router.add_get("/metrics", page(ENGINE_PAGE))
    await second.start_server()
    urls = [await serve(page(ENGINE_PAGE)), str(second.make_url("/"))]
    async with MetricsScraper(replicas(*urls)) as scraper:
        await scraper.scrape(1.0)
        await second.close()
        got, own = await scraper.scrape(2.0), scraper.replicas["e-2"]
    assert (got.reachable, got.prompt_tokens, got.running) == (True, 2 * 27978, 4)
    assert (own.reachable, own.prompt_tokens, own.running) == (False, 27978, None)
