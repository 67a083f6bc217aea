"""What the client says of each reply of `replies/`."""

import math
import time
from typing import Any

import pytest
from replay_host import ReplayHost

from loadgen.client.client import StreamingClient
from loadgen.client.exchange import Exchange
from loadgen.client.settings import ClientSettings

# What an exchange must say: exact values, and of the error a part. `near` has times in ms: a busy
# machine makes more of them, so the shortest of a few tries counts.
RIGHT: dict[str, dict[str, Any]] = {
    "usage-first-and-last": {"outcome": "ok", "tokens": 3, "near": {"tpot_ms": 30}},
    "reasoning-in-other-fields": {
        "outcome": "ok",
        "tokens": 5,
        "near": {"ttft_ms": 50, "tpot_ms": 82},
    },
    "slo-of-a-figure-nobody-has": {"outcome": "ok", "tokens": 4, "output_tokens": None},
    "given-up-by-another-word": {
        "outcome": "truncated",
        "error": "insufficient_system_resource",
        "tokens": 2,
    },
    "user-waits-for-the-body-to-end": {"outcome": "ok", "tokens": 4, "output_tokens": 4},
    "hosts-words-lost": {"outcome": "malformed", "error": "CUDA out of memory", "tokens": 1},
    "error-event-then-stop": {"outcome": "malformed", "error": "CUDA out of memory", "tokens": 1},
    "hidden-reasoning-in-tpot": {"outcome": "ok", "output_tokens": 104, "near": {"tpot_ms": 20}},
    "redirect-without-its-target": {
        "outcome": "http_error",
        "error": "HTTP 301: redirects to https://llm.example/v1/completions",
    },
    "space-behind-done": {"outcome": "ok", "tokens": 4, "output_tokens": 4},
    "missing-usage-unsaid": {"outcome": "ok", "tokens": 4, "output_tokens": None},
}
CHAT = {"usage-first-and-last", "reasoning-in-other-fields"}
SLACK_MS = 25.0
TRIES = 5


async def ask(url: str, name: str) -> Exchange:
    exchange = Exchange()
    endpoint: Any = "chat" if name in CHAT else "completions"
    async with StreamingClient(ClientSettings(url=url, model="m", endpoint=endpoint)) as client:
        await client.stream("why?", 16, exchange)
    return exchange


def told(exchange: Exchange) -> dict[str, Any]:
    first_s = (exchange.first_token_at or 0.0) - (exchange.sent_at or 0.0)
    return {
        "outcome": exchange.outcome,
        "error": exchange.error,
        "tokens": len(exchange.token_times),
        "output_tokens": exchange.output_tokens,
        "ttft_ms": first_s * 1000,
        "tpot_ms": exchange.tpot_ms,
    }


@pytest.mark.parametrize("name", RIGHT)
async def test_a_reply_is_told_as_what_it_is(replays: ReplayHost, name: str) -> None:
    right = {"error": "", "near": {}, **RIGHT[name]}
    near, error = right.pop("near"), right.pop("error")
    shortest_ms = dict.fromkeys(near, math.inf)
    for _ in range(TRIES if near else 1):
        seen = told(await ask(replays.url_of(name), name))
        assert error in seen["error"]
        assert bool(error) == bool(seen["error"])
        assert {key: seen[key] for key in right} == right
        shortest_ms = {key: min(best, seen[key]) for key, best in shortest_ms.items()}
        if all(shortest_ms[key] <= value_ms + SLACK_MS for key, value_ms in near.items()):
            break
    for key, value_ms in near.items():
        assert value_ms - 1 <= shortest_ms[key] <= value_ms + SLACK_MS


async def test_the_next_request_does_not_wait_for_the_end_of_the_body(replays: ReplayHost) -> None:
    settings = ClientSettings(url=replays.url_of("user-waits-for-the-body-to-end"), model="m")
    exchanges, begun_s = [Exchange() for _ in range(4)], time.perf_counter()
    async with StreamingClient(settings) as client:
        for exchange in exchanges:
            await client.stream("why?", 16, exchange)
        took_s = time.perf_counter() - begun_s
    assert {exchange.outcome for exchange in exchanges} == {"ok"}
    assert took_s < 3, "a body ends 3 s behind its reply of 60 ms"
