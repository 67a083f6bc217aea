"""A host that takes no more now: told apart from other failures, and tried again where asked."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from email.utils import formatdate
from typing import Any

import pytest
from aiohttp import web
from behaviours import DONE, REPLY, event, serving, token, usage
from test_client_meaning import said

from loadgen.client.client import StreamingClient
from loadgen.client.deadlines import by_its_clock, pause_before_retry_s
from loadgen.client.exchange import Exchange, ListExchange
from loadgen.client.failures import failure_in_stream
from loadgen.client.settings import ClientSettings
from loadgen.client.transport import Head

BUSY = {"error": {"message": "engine is currently busy", "type": "Unavailable", "code": 503}}
GOOD = (*REPLY, usage(), DONE)


@asynccontextmanager
async def host(*answers: tuple[int, Any], retry_after: str = "0") -> AsyncIterator[list[float]]:
    """Gives the answers in turn, the last for good: a status with JSON, 200 with events, or with 0
    none. What it yields holds the times of requests, behind the port."""
    log: list[float] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        log.append(time.perf_counter())
        status, content = answers[min(len(log) - 2, len(answers) - 1)]
        if not status:
            await asyncio.sleep(600)
        if status != 200:
            headers = {
                "X-Served-By": "one",
                "Date": "Wed, 21 Oct 2015 07:28:00 GMT",
                **({"Retry-After": retry_after} if retry_after else {}),
            }
            return web.json_response(content, status=status, headers=headers)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for part in content:
            await response.write(part)
        return response

    app = web.Application()
    app.router.add_post("/v1/completions", answer)
    async with serving(app) as port:
        log.append(float(port))
        yield log


async def ask(log: Sequence[float], **settings: Any) -> Exchange:
    exchange = Exchange()
    url = f"http://127.0.0.1:{int(log[0])}"
    given = ClientSettings(**{"url": url, "model": "demo", "timeout_s": 20.0, **settings})
    async with StreamingClient(given) as client:
        await client.stream("What?", 3, exchange)
    return exchange


@pytest.mark.parametrize(
    ("status", "outcome"),
    [(429, "rejected"), (503, "rejected"), (408, "timeout"), (504, "timeout"), (502, "http_error")],
)
async def test_a_status_says_what_became_of_the_request(status: int, outcome: str) -> None:
    async with host((status, BUSY)) as log:
        exchange = await ask(log)
    assert (exchange.outcome, exchange.status, len(log) - 1) == (outcome, status, 1)
    assert f"HTTP {status}: engine is currently busy" in exchange.error


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (BUSY, "rejected"),
        ({"error": {"message": "slow down", "code": "429"}}, "rejected"),
        ({"error": {"error": {"message": "later", "status": 503}}}, "rejected"),
        ({"error": {"message": "EngineCore died", "code": 500}}, "malformed"),
        ({"error": {"message": "HTTP 503 is in these words alone"}}, "malformed"),
        ({"error": "busy"}, "malformed"),
    ],
)
async def test_the_code_of_an_error_inside_a_200_says_so_too(error: Any, outcome: str) -> None:
    assert failure_in_stream(error).outcome == outcome
    async with host((200, (event(**error),))) as log:
        exchange = await ask(log)
    assert (exchange.outcome, exchange.status) == (outcome, 200)
    assert exchange.error.startswith("error inside the stream: ")


@pytest.mark.parametrize(
    ("body", "outcome"),
    [
        ({"error": {"message": "slow down", "code": 429}}, "rejected"),
        ({"error": {"message": "slow down", "code": 500}}, "malformed"),
        ({"choices": [{"text": "slow down"}], "code": 429}, "rejected"),
        ({"choices": [{"text": "slow down", "status": 429}]}, "malformed"),
        ("slow down", "malformed"),
    ],
)
def test_so_does_one_in_a_200_that_is_no_stream(body: Any, outcome: str) -> None:
    exchange = said(json.dumps(body).encode(), head=Head(200, "application/json", "0"))
    assert (exchange.outcome, exchange.retries) == (outcome, 0)
    assert exchange.error.startswith("not an event stream but application/json: ")


@pytest.mark.parametrize("code", [429, 503, 500])
def test_an_error_behind_the_end_is_one_whatever_its_code(code: int) -> None:
    error = event(error={"message": "overloaded", "code": code})
    exchange = said(*REPLY, usage(), error, DONE)
    assert exchange.outcome == ("malformed" if code == 500 else "rejected")
    assert exchange.error == "error inside the stream: overloaded"


async def test_a_rejected_request_is_tried_again_and_its_time_runs_on() -> None:
    async with host((503, BUSY), (429, BUSY), (200, GOOD), retry_after="1") as log:
        exchange = await ask(log, retries=5)
    assert (exchange.outcome, exchange.error, exchange.status) == ("ok", "", 200)
    assert (exchange.retries, len(log) - 1, exchange.output_tokens) == (2, 3, 3)
    assert exchange.sent_at is not None
    assert exchange.token_times[0] - exchange.sent_at >= 2.0


async def test_what_answered_a_rejected_attempt_is_not_said_of_the_next() -> None:
    async with host((503, BUSY), (0, None)) as log:
        exchange = await ask(log, retries=1, timeout_s=1.0)
    assert (exchange.outcome, exchange.retries, len(log) - 1) == ("timeout", 1, 2)
    assert (exchange.status, exchange.served_by) == (None, "")


async def test_what_a_rejected_reply_said_is_no_part_of_the_next() -> None:
    refusal = (token("", "error"), usage(9, 8, reasoning_tokens=8), event(**BUSY))
    async with host((200, refusal), (200, (*REPLY, DONE))) as log:
        exchange = await ask(log, retries=2)
    assert (exchange.outcome, exchange.error, exchange.retries) == ("ok", "", 1)
    assert (exchange.prompt_tokens, exchange.output_tokens, exchange.tpot_ms) == (None, None, None)
    assert (exchange.finish_reason, exchange.reasoning_tokens) == ("length", 0)


async def test_nobody_waits_for_a_host_in_the_pause_that_it_asked_for() -> None:
    async with host((503, BUSY), retry_after="60") as log:
        given = ClientSettings(url=f"http://127.0.0.1:{int(log[0])}", model="demo", retries=1)
        async with asyncio.timeout(20), StreamingClient(given) as client:
            asking = asyncio.create_task(client.stream("What?", 3, Exchange()))
            await asyncio.sleep(0)
            assert client.is_waiting
            while len(log) < 2 or client.is_waiting:  # noqa: ASYNC110 (plain data)
                await asyncio.sleep(0.01)
            assert not asking.done()
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)


async def test_nothing_is_tried_again_unasked_or_more_often_than_asked() -> None:
    async with host((503, BUSY)) as log:
        assert (await ask(log)).outcome == "rejected"
        assert len(log) - 1 == 1
        exchange = await ask(log, retries=2)
    assert (exchange.outcome, exchange.retries, len(log) - 1) == ("rejected", 2, 4)


@pytest.mark.parametrize(
    "answer", [(500, {"error": "no"}), (200, (token("half"), event(**BUSY)))], ids=["500", "begun"]
)
async def test_other_failures_and_replies_that_had_begun_are_not(answer: Any) -> None:
    async with host(answer, (200, GOOD)) as log:
        exchange = await ask(log, retries=3)
    assert (exchange.outcome == "ok", exchange.retries, len(log) - 1) == (False, 0, 1)


async def test_a_pause_that_outlasts_the_request_is_not_begun() -> None:
    async with host((503, BUSY), (200, GOOD), retry_after="3600") as log:
        begun_s = time.perf_counter()
        exchange = await ask(log, retries=3)
    assert (exchange.outcome, len(log) - 1) == ("rejected", 1)
    assert time.perf_counter() - begun_s < 10


async def test_a_list_of_prompts_is_tried_again_as_a_whole() -> None:
    members = [Exchange(), Exchange()]
    both = ListExchange(tuple(members))
    choices = [
        event(choices=[{"index": at, "text": "x", "finish_reason": "length"}]) for at in (0, 1)
    ]
    odd = event(choices=[{"index": 1, "text": "", "finish_reason": "error"}])
    async with host((200, (odd, event(**BUSY))), (200, (*choices, usage(), DONE))) as log:
        url = f"http://127.0.0.1:{int(log[0])}"
        async with StreamingClient(ClientSettings(url=url, model="demo", retries=1)) as client:
            await client.stream(["a", "b"], 1, both)
    both.settle()
    assert [(each.outcome, each.retries) for each in members] == [("ok", 1)] * 2


def test_the_pause_is_what_the_host_asks_for() -> None:
    assert pause_before_retry_s("7", 3) == 7.0
    assert pause_before_retry_s(formatdate(time.time() + 60, usegmt=True), 0) == pytest.approx(
        60, abs=2
    )
    assert pause_before_retry_s("Wed, 21 Oct 2015 07:28:00 GMT", 0) == 0.0
    for odd in ("", "soon"):
        assert [pause_before_retry_s(odd, retries) for retries in (0, 1, 2)] == [1.0, 2.0, 4.0]


def test_a_date_to_wait_for_is_by_the_clock_of_the_host() -> None:
    sent, until = "Wed, 21 Oct 2015 07:28:00 GMT", "Wed, 21 Oct 2015 07:28:09 GMT"
    assert pause_before_retry_s(by_its_clock(until, sent), 3) == 9.0
    assert pause_before_retry_s(by_its_clock(sent, until), 3) == 0.0
    for odd in ("7", "", "soon"):
        assert by_its_clock(odd, sent) == odd
    assert by_its_clock(until, "") == until


async def test_a_host_whose_clock_is_wrong_is_asked_again_when_it_said() -> None:
    async with host((503, BUSY), (200, GOOD), retry_after="Wed, 21 Oct 2015 07:28:01 GMT") as log:
        exchange = await ask(log, retries=1)
    assert (exchange.outcome, exchange.retries) == ("ok", 1)
    assert log[2] - log[1] >= 1.0


def test_numbers_of_any_size_are_the_host_s_fault() -> None:
    far = "Mon, 01 Jan 2024 00:00:00 +99999999999999999999"
    assert pause_before_retry_s(far, 0) == 1.0
    busy = said(b"busy", head=Head(503, "text/plain", far))
    assert (busy.outcome, busy.error) == ("rejected", "HTTP 503: busy")
    failed = said(REPLY[0], event(error={"message": "overload", "code": "9" * 5000}))
    assert (failed.outcome, failed.error) == ("malformed", "error inside the stream: overload")
