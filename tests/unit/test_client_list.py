"""A call with a list of prompts: replies told apart by their index, each with its own outcome."""

import asyncio
from typing import Any

import pytest
from behaviours import (
    DONE,
    STREAMS,
    Behaviour,
    BehaviourServer,
    behaviour_server,
    event,
    hang,
    reset,
    split,
    then,
    usage,
    writes,
)

from loadgen.client.client import StreamingClient
from loadgen.client.exchange import ListExchange, interpret_list
from loadgen.client.failures import Malformed
from loadgen.client.protocol import Usage

PROMPTS = ["naïve", "日本語", "🦜"]


def piece(index: object, text: str, finish_reason: str | None = None, **more: Any) -> bytes:
    choice = {"index": index, "text": text, "finish_reason": finish_reason}
    return event(id="cmpl-1", choices=[choice], **more)


def counted(index: int, tokens: int, finish_reason: str | None = None) -> bytes:
    """As vLLM writes it: the running usage of this choice alone, text or none."""
    running = {"prompt_tokens": 10 + index, "completion_tokens": tokens}
    return piece(index, "é" if tokens > 1 else "", finish_reason, usage=running)


PLAIN = (
    piece(1, "日"),
    piece(0, "a"),
    piece(1, "本", "length"),
    piece(2, "🦜"),
    piece(0, "b", "length"),
    piece(2, "x", "stop"),
)
RUNNING = (
    counted(0, 1),
    counted(2, 1),
    counted(0, 2, "length"),
    counted(1, 1),
    counted(2, 2),
    counted(1, 2, "length"),
    counted(2, 3, "length"),
)
SUM = usage(33, 6, prompt_tokens_details={"cached_tokens": 8})
WHOLE = b"".join((*PLAIN, SUM, DONE))

LISTS: dict[str, Behaviour] = {
    "whole": writes(*PLAIN, SUM, DONE),
    "bytes": writes(*split(WHOLE, 1), pause_s=0),
    "pieces": writes(*split(WHOLE, 11), pause_s=0),
    "one-packet": writes(WHOLE),
    "several-choices": writes(
        event(choices=[{"index": i, "text": "a", "finish_reason": None} for i in range(3)]),
        event(choices=[{"index": i, "text": "b", "finish_reason": "length"} for i in range(3)]),
        SUM,
        DONE,
    ),
    "running": writes(*RUNNING, usage(33, 7), DONE),
    "no-usage": writes(*PLAIN, DONE),
    "cut-after-all": then(writes(*PLAIN), reset),
    "cut": then(writes(*PLAIN[:4]), reset),
    "ended": writes(*PLAIN[:4], DONE),
    "hanging": then(writes(*PLAIN[:4]), hang),
    "error": writes(*PLAIN[:4], event(error={"message": "EngineCore died", "code": 500}), DONE),
    "bad-json": writes(*PLAIN[:4], b"data: {nonsense\n\n"),
    "beyond": writes(*PLAIN[:4], piece(3, "who?")),
    "aborted": writes(*PLAIN[:4], piece(0, "", "abort"), piece(2, "x", "stop"), SUM, DONE),
}


@pytest.fixture
async def server(monkeypatch: pytest.MonkeyPatch) -> Any:
    for name, behaviour in LISTS.items():
        monkeypatch.setitem(STREAMS, f"list-{name}", behaviour)
    async with behaviour_server() as running:
        yield running


async def call(
    server: BehaviourServer, name: str, running: bool = False, **settings: Any
) -> ListExchange:
    exchange = ListExchange.of(len(PROMPTS), usage_per_choice=running)
    options = server.settings(name, **{"timeout_s": 20.0, **settings})
    async with StreamingClient(options) as client:
        await client.stream(PROMPTS, 2, exchange)
    exchange.settle()
    return exchange


@pytest.mark.parametrize("name", ["whole", "bytes", "pieces", "one-packet", "several-choices"])
async def test_replies_are_told_apart_wherever_the_bytes_are_cut(
    server: BehaviourServer, name: str
) -> None:
    exchange = await call(server, f"list-{name}")
    assert (exchange.outcome, exchange.error) == ("ok", "")
    for member in exchange.members:
        assert (member.outcome, member.status, member.sent_at) == ("ok", 200, exchange.sent_at)
        assert len(member.token_times) == 2
        assert member.end_at == member.token_times[-1]
        assert (member.prompt_tokens, member.cached_tokens, member.output_tokens) == (None,) * 3
    assert exchange.call_usage == Usage(33, None, 6)


async def test_the_prompts_go_out_as_one_list(server: BehaviourServer) -> None:
    await call(server, "list-whole")
    assert [body["prompt"] for body in server.bodies] == [PROMPTS]


async def test_each_reply_has_its_own_times(server: BehaviourServer) -> None:
    exchange = await call(server, "list-whole")
    first = [member.first_token_at or 0 for member in exchange.members]
    ends = [member.end_at or 0 for member in exchange.members]
    assert 0 < first[1] <= first[0] <= ends[1] <= first[2] <= ends[0] <= ends[2]


async def test_running_usage_gives_each_reply_its_tokens(server: BehaviourServer) -> None:
    exchange = await call(server, "list-running", running=True)
    assert [member.outcome for member in exchange.members] == ["ok"] * 3
    assert [member.prompt_tokens for member in exchange.members] == [10, 11, 12]
    assert [member.output_tokens for member in exchange.members] == [2, 2, 3]
    assert [len(member.token_times) for member in exchange.members] == [2, 2, 3]
    assert exchange.call_usage == Usage(None, None, None)


async def test_usage_is_nobodys_where_it_was_not_asked_for(server: BehaviourServer) -> None:
    exchange = await call(server, "list-running", running=False)
    assert {member.output_tokens for member in exchange.members} == {None}
    assert exchange.call_usage == Usage(33, None, 7)


@pytest.mark.parametrize("name", ["no-usage", "cut-after-all"])
async def test_a_reply_is_complete_at_its_own_end(server: BehaviourServer, name: str) -> None:
    exchange = await call(server, f"list-{name}")
    assert [member.outcome for member in exchange.members] == ["ok"] * 3
    assert exchange.outcome == "ok"
    assert exchange.call_usage is None


FAILURES = {
    "cut": ("truncated", "connection broke"),
    "ended": ("truncated", "without a finish reason for 2 of 3"),
    "error": ("malformed", "EngineCore died"),
    "bad-json": ("malformed", "not JSON"),
    "beyond": ("malformed", "prompt 3 of a list of 3"),
    "hanging": ("timeout", "within 0.5 s"),
}


@pytest.mark.parametrize("name", FAILURES)
async def test_a_broken_call_fails_those_that_were_not_complete(
    server: BehaviourServer, name: str
) -> None:
    exchange = await call(server, f"list-{name}", timeout_s=0.5 if name == "hanging" else 20.0)
    outcome, error = FAILURES[name]
    assert [member.outcome for member in exchange.members] == [outcome, "ok", outcome]
    for place in (0, 2):
        member = exchange.members[place]
        assert error in member.error
        assert member.end_at == exchange.end_at
        assert member.first_token_at is not None
    assert exchange.members[1].error == ""


async def test_a_reply_the_engine_gave_up_fails_alone(server: BehaviourServer) -> None:
    exchange = await call(server, "list-aborted")
    assert [member.outcome for member in exchange.members] == ["truncated", "ok", "ok"]
    assert "'abort'" in exchange.members[0].error


async def test_a_refused_call_fails_every_member(server: BehaviourServer) -> None:
    exchange = await call(server, "500-openai")
    assert {(each.outcome, each.status) for each in exchange.members} == {("http_error", 500)}
    assert all("out of blocks" in member.error for member in exchange.members)


async def test_a_cancelled_call_keeps_what_was_complete(server: BehaviourServer) -> None:
    exchange = ListExchange.of(3, usage_per_choice=False)
    async with StreamingClient(server.settings("list-hanging")) as client:
        task = asyncio.create_task(client.stream(PROMPTS, 2, exchange))
        async with asyncio.timeout(10):
            while exchange.members[2].first_token_at is None:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    exchange.settle()
    assert [member.outcome for member in exchange.members] == ["cancelled", "ok", "cancelled"]


@pytest.mark.parametrize(
    "payload",
    [
        b'{"choices":[{"text":"a"}]}',
        b'{"choices":[{"index":null,"text":"a"}]}',
        b'{"choices":[{"index":-1,"text":"a"}]}',
        b'{"choices":[{"index":true,"text":"a"}]}',
        b'{"choices":["a"]}',
        b'{"choices":{"index":0}}',
        b"[1]",
        b'{"error":"down"}',
    ],
)
def test_what_names_no_prompt_is_malformed(payload: bytes) -> None:
    with pytest.raises(Malformed):
        interpret_list(payload)
