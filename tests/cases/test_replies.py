"""What the client says of each reply of `replies/`."""

from typing import Any

import pytest
from replay_host import ReplayHost

from loadgen.client.client import StreamingClient
from loadgen.client.exchange import Exchange
from loadgen.client.settings import ClientSettings

# What an exchange must say: exact values, and of the error a part. The times of tokens are in
# `test_their_times`, as a busy machine delays them.
RIGHT: dict[str, dict[str, Any]] = {
    "slo-of-a-figure-nobody-has": {"outcome": "ok", "tokens": 4, "output_tokens": None},
    "missing-usage-unsaid": {"outcome": "ok", "tokens": 4, "output_tokens": None},
    "user-waits-for-the-body-to-end": {"outcome": "ok", "tokens": 4, "output_tokens": 4},
}
CHAT = {"usage-first-and-last", "reasoning-in-other-fields"}


async def ask(url: str, name: str) -> Exchange:
    exchange = Exchange()
    endpoint: Any = "chat" if name in CHAT else "completions"
    async with StreamingClient(ClientSettings(url=url, model="m", endpoint=endpoint)) as client:
        await client.stream("why?", 16, exchange)
    return exchange


def told(exchange: Exchange) -> dict[str, Any]:
    return {
        "outcome": exchange.outcome,
        "error": exchange.error,
        "tokens": len(exchange.token_times),
        "output_tokens": exchange.output_tokens,
    }


@pytest.mark.parametrize("name", RIGHT)
async def test_a_reply_is_told_as_what_it_is(replays: ReplayHost, name: str) -> None:
    seen = told(await ask(replays.url_of(name), name))
    right = {"error": "", **RIGHT[name]}
    assert right.pop("error") in seen["error"]
    assert {key: seen[key] for key in right} == right
