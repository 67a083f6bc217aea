"""The client, over sockets, against a real server that behaves well, badly and worse."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest
from behaviours import ERRORS, STREAMS, BehaviourServer, behaviour_server

from loadgen.client.client import StreamingClient
from loadgen.client.exchange import Exchange
from loadgen.record import Outcome


@pytest.fixture
async def server() -> AsyncIterator[BehaviourServer]:
    async with behaviour_server() as running:
        yield running


async def ask(
    server: BehaviourServer,
    behaviour: str,
    body_extra: Mapping[str, Any] | None = None,
    **settings: Any,
) -> Exchange:
    exchange = Exchange()
    options = server.settings(behaviour, **{"timeout_s": 20.0, **settings})
    async with StreamingClient(options) as client:
        await client.stream("naïve 🦜", 3, exchange, body_extra)
    return exchange


def assert_times_in_order(exchange: Exchange) -> None:
    times = [exchange.sent_at, *exchange.token_times, exchange.end_at]
    known = [time for time in times if time is not None]
    assert known == sorted(known)
    assert exchange.end_at is not None


SUCCESSES: dict[str, tuple[int, str, int | None, int | None]] = {
    # behaviour: events with output, finish reason, output tokens, cached tokens
    "normal": (3, "length", 3, None),
    "slow-first-token": (3, "length", 3, None),
    "single-bytes": (3, "stop", 3, None),
    "odd-pieces": (3, "stop", 3, None),
    "one-packet": (3, "length", 3, None),
    "crlf": (3, "length", 3, None),
    "no-usage": (3, "length", None, None),
    "no-done": (3, "length", 3, None),
    "no-content": (0, "stop", 0, None),
    "cached": (3, "length", 3, 5),
    "cached-zero": (3, "length", 3, 0),
    "cached-null": (3, "length", 3, None),
    "details-null": (3, "length", 3, None),
    "running-usage": (3, "stop", 3, 5),
    "reset-after-done": (3, "length", 3, None),
    "hang-up-with-done": (3, "length", 3, None),
}


@pytest.mark.parametrize("behaviour", SUCCESSES)
async def test_a_complete_reply_is_ok(server: BehaviourServer, behaviour: str) -> None:
    exchange = await ask(server, behaviour, continuous_usage=behaviour == "running-usage")
    tokens, finish_reason, output_tokens, cached_tokens = SUCCESSES[behaviour]
    assert (exchange.outcome, exchange.error, exchange.status) == ("ok", "", 200)
    assert len(exchange.token_times) == tokens
    assert exchange.finish_reason == finish_reason
    assert exchange.output_tokens == output_tokens
    assert exchange.cached_tokens == cached_tokens
    assert_times_in_order(exchange)


FAILURES: dict[str, tuple[Outcome, int | None, int, str]] = {
    # behaviour: outcome, status, events with output, part of the error
    "no-finish": ("truncated", 200, 2, "without a finish reason"),
    "neither-usage-nor-done": ("truncated", 200, 3, "without usage or [DONE]"),
    "nothing": ("truncated", 200, 0, "without a finish reason"),
    "only-done": ("truncated", 200, 0, "without a finish reason"),
    "aborted": ("truncated", 200, 2, "'abort'"),
    "reset-mid-stream": ("truncated", 200, 2, "connection broke"),
    "hang-up-mid-stream": ("truncated", 200, 2, "connection broke"),
    "running-usage-cut": ("truncated", 200, 1, "connection broke"),
    "error-in-stream": ("malformed", 200, 1, "EngineCore died"),
    "bad-json": ("malformed", 200, 1, "not JSON"),
    "bad-utf8": ("malformed", 200, 0, "not JSON"),
    "endless-line": ("malformed", 200, 0, "without an end"),
    "json-200": ("malformed", 200, 0, "not an event stream but application/json"),
    "500-openai": ("http_error", 500, 0, "HTTP 500: out of blocks"),
    "500-html": ("http_error", 500, 0, "HTTP 500: 502 Bad Gateway"),
    "500-empty": ("http_error", 500, 0, "HTTP 500: no message"),
    "404": ("http_error", 404, 0, "HTTP 404: Not Found"),
    "422": ("http_error", 422, 0, "extra field"),
    "429": ("rejected", 429, 0, "HTTP 429: rate limit? reached"),
    "401-echo": ("http_error", 401, 0, "HTTP 401: bad key"),
    "long-error": ("http_error", 400, 0, "HTTP 400: word word"),
    "307": ("http_error", 307, 0, "HTTP 307"),
    "reset-before-headers": ("connect_error", None, 0, "reset the connection"),
}


@pytest.mark.parametrize("behaviour", FAILURES)
async def test_an_incomplete_reply_is_told_apart(server: BehaviourServer, behaviour: str) -> None:
    exchange = await ask(server, behaviour)
    outcome, status, tokens, error = FAILURES[behaviour]
    assert (exchange.outcome, exchange.status) == (outcome, status)
    assert len(exchange.token_times) == tokens
    assert error in exchange.error
    assert len(exchange.error) <= 300
    assert exchange.error.isprintable()
    assert_times_in_order(exchange)


TIMEOUTS: dict[str, tuple[Outcome, int | None]] = {
    "hang-before-headers": ("timeout", None),
    "hang-mid-stream": ("timeout", 200),
    "endless": ("timeout", 200),
    "hang-after-usage": ("ok", 200),
}


@pytest.mark.parametrize("behaviour", TIMEOUTS)
async def test_a_request_ends_in_time(server: BehaviourServer, behaviour: str) -> None:
    exchange = await ask(server, behaviour, timeout_s=0.3)
    outcome, status = TIMEOUTS[behaviour]
    assert (exchange.outcome, exchange.status) == (outcome, status)
    assert ("within 0.3 s" in exchange.error) == (outcome == "timeout")
    assert_times_in_order(exchange)


def test_every_behaviour_is_tested() -> None:
    served = {*STREAMS, *ERRORS, "307", "hang-before-headers", "reset-before-headers"}
    assert served == {*SUCCESSES, *FAILURES, *TIMEOUTS, "chat", "hang-after-done"}


async def test_a_host_that_never_ends_the_body_holds_nobody_up(server: BehaviourServer) -> None:
    async with asyncio.timeout(15):
        exchange = await ask(server, "hang-after-done", timeout_s=60.0)
    assert exchange.outcome == "ok"


async def test_a_wait_before_the_first_token_is_in_its_time(server: BehaviourServer) -> None:
    exchange = await ask(server, "slow-first-token")
    assert exchange.sent_at is not None
    assert exchange.first_token_at is not None
    assert exchange.first_token_at - exchange.sent_at >= 0.1


async def test_what_came_before_a_cut_is_kept(server: BehaviourServer) -> None:
    exchange = await ask(server, "running-usage-cut")
    assert (exchange.prompt_tokens, exchange.output_tokens) == (7, 1)


async def test_a_chat_goes_to_the_chat_endpoint(server: BehaviourServer) -> None:
    exchange = await ask(server, "chat", endpoint="chat")
    assert exchange.outcome == "ok"
    assert len(exchange.token_times) == 2
    assert server.bodies[0]["messages"][0]["content"] == "naïve 🦜"


async def test_the_request_says_what_was_set(server: BehaviourServer) -> None:
    await ask(
        server,
        "normal/v1/",
        {"session_id": "c1"},
        headers={"Authorization": "Bearer sk-1", "X-Extra": "y"},
        ignore_eos=True,
        extra_body={"top_p": 0.5},
    )
    body, headers = server.bodies[0], server.headers[0]
    assert body["prompt"] == "naïve 🦜"
    assert body["max_tokens"] == 3
    assert (body["ignore_eos"], body["top_p"], body["session_id"]) == (True, 0.5, "c1")
    assert (headers["Authorization"], headers["X-Extra"]) == ("Bearer sk-1", "y")
    assert headers["Content-Type"] == "application/json"
    assert "Cookie" not in headers
