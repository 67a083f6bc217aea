"""The header by which a router keeps requests on one engine, and the one by which that is told."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from behaviours import DONE, REPLY, serving, usage

from loadgen.client.client import StreamingClient
from loadgen.client.exchange import Exchange, ListExchange
from loadgen.client.settings import ClientSettings, parse_header_name
from loadgen.context import Request
from loadgen.errors import UsageError
from loadgen.swarm.sending.labels import Labels


@asynccontextmanager
async def host() -> AsyncIterator[tuple[str, list[dict[str, str]]]]:
    """Answers every request, and says by whom."""
    heard: list[dict[str, str]] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        heard.append(dict(request.headers))
        served_by = {"X-Served-By": f"engine-{len(heard)}"}
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", **served_by})
        await response.prepare(request)
        for part in (*REPLY, usage(), DONE):
            await response.write(part)
        return response

    app = web.Application()
    app.router.add_post("/v1/completions", answer)
    async with serving(app) as port:
        yield f"http://127.0.0.1:{port}", heard


async def test_each_request_has_its_own_session_and_tells_its_engine() -> None:
    async with host() as (url, heard):
        given = ClientSettings(url=url, model="demo", session_header="X-Session-Id")
        exchanges = [Exchange(), Exchange(), Exchange()]
        async with StreamingClient(given) as client:
            for exchange, session in zip(exchanges, ("north", "süd 2\r\n", ""), strict=True):
                await client.stream("What?", 3, exchange, session=session)
    assert [each.outcome for each in exchanges] == ["ok"] * 3
    assert [each.served_by for each in exchanges] == ["engine-1", "engine-2", "engine-3"]
    assert [told.get("X-Session-Id") for told in heard] == ["north", "s%C3%BCd%202%0D%0A", None]


async def test_without_its_name_no_header_is_sent() -> None:
    async with (
        host() as (url, heard),
        StreamingClient(ClientSettings(url=url, model="demo")) as client,
    ):
        await client.stream("What?", 3, Exchange(), session="north")
    assert "north" not in heard[0].values()


def test_members_of_a_list_call_have_one_engine() -> None:
    call = ListExchange.of(2, usage_per_choice=True)
    call.served_by = "engine-1"
    call.settle()
    assert [member.served_by for member in call.members] == ["engine-1"] * 2


REQUEST = Request(
    index=0,
    context_id="manual",
    question_id="q",
    question="What?",
    prompt="What?",
    max_tokens=1,
    label="manual",
    root=0,
    session_id="talk-7",
)


@pytest.mark.parametrize(
    ("by", "found", "session"),
    [
        ("context", None, "manual"),
        ("context", "guide", "guide"),
        ("context", "", ""),
        ("user", "guide", "User-3"),
        ("conversation", None, "talk-7"),
    ],
)
def test_what_keeps_requests_together(by: str, found: str | None, session: str) -> None:
    assert Labels(False, {}, by).session(REQUEST, "User-3", found) == session


@pytest.mark.parametrize("name", ["X Session", "Content-Length", "Ä"])
def test_a_name_that_no_header_can_have(name: str) -> None:
    with pytest.raises(UsageError, match="header"):
        parse_header_name(name)
