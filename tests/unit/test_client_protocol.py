"""Request bodies and the meaning of events."""

from typing import Any

import orjson
import pytest

from loadgen.client.failures import Malformed
from loadgen.client.protocol import REASONING, TOKEN, Usage, interpret, request_body
from loadgen.client.settings import ClientSettings


def body(prompt: str = "hi", extra: dict[str, Any] | None = None, **settings: Any) -> Any:
    options = {"url": "http://h", "model": "m", **settings}
    return orjson.loads(request_body(ClientSettings(**options), prompt, 5, extra))


def event(**fields: Any) -> bytes:
    return orjson.dumps(fields)


def choice(**fields: Any) -> bytes:
    return event(choices=[{"index": 0, "finish_reason": None, **fields}])


def test_a_completion_asks_for_a_stream_with_usage() -> None:
    assert body() == {
        "model": "m",
        "prompt": "hi",
        "max_tokens": 5,
        "temperature": 0.0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def test_a_chat_is_one_user_message() -> None:
    asked = body(endpoint="chat", temperature=None)
    assert asked["messages"] == [{"role": "user", "content": "hi"}]
    assert "prompt" not in asked
    assert "temperature" not in asked


def test_what_only_vllm_knows_is_sent_on_demand() -> None:
    asked = body(ignore_eos=True, continuous_usage=True)
    assert asked["ignore_eos"] is True
    assert asked["stream_options"]["continuous_usage_stats"] is True


def test_extra_fields_win_and_those_of_the_request_last() -> None:
    asked = body(
        extra={"vllm_xargs": {"a": 2}},
        extra_body={"temperature": 0.7, "vllm_xargs": {"a": 1}, "top_p": 0.5},
    )
    assert (asked["temperature"], asked["vllm_xargs"], asked["top_p"]) == (0.7, {"a": 2}, 0.5)


def test_an_extra_field_may_depend_on_the_length_of_the_reply() -> None:
    asked = body(extra_body={"config": '{"least": {max_tokens}}', "least": 1})
    assert (asked["config"], asked["least"]) == ('{"least": 5}', 1)


@pytest.mark.parametrize(
    "payload",
    [
        choice(text=" "),
        choice(text="", token_ids=[5]),
        choice(delta={"content": "a"}),
        choice(delta={"content": None, "tool_calls": [{"index": 0, "function": {"name": "f"}}]}),
    ],
)
def test_output_in_any_form_is_content(payload: bytes) -> None:
    assert interpret(payload) is TOKEN


@pytest.mark.parametrize(
    "payload",
    [
        choice(delta={"content": "", "reasoning_content": "a"}),
        choice(delta={"reasoning": "a"}),
    ],
)
def test_reasoning_is_content_told_apart(payload: bytes) -> None:
    assert interpret(payload) is REASONING


@pytest.mark.parametrize(
    "payload",
    [
        choice(text=""),
        choice(text=None),
        choice(text="", token_ids=[]),
        choice(delta={"role": "assistant", "content": ""}),
        choice(delta={}),
        choice(delta=None),
        event(choices=[], prompt_filter_results=[{}]),
        event(choices=None),
        event(type="ping"),
        event(error=None),
    ],
)
def test_an_event_without_output_is_not(payload: bytes) -> None:
    assert not interpret(payload).content


def test_a_finish_may_carry_the_last_token() -> None:
    last = interpret(choice(text="x", finish_reason="length"))
    assert (last.content, last.finish_reason) == (True, "length")
    assert interpret(choice(text="x", finish_reason="")).finish_reason is None


@pytest.mark.parametrize(
    ("details", "cached"),
    [
        ({"cached_tokens": 640}, 640),
        ({"cached_tokens": 0}, 0),
        ({"cached_tokens": None}, None),
        ({"cached_tokens": "640"}, 640),
        ({"cached_tokens": "many"}, None),
        ({}, None),
        (None, None),
    ],
)
def test_cached_tokens_are_unknown_unless_stated(
    details: dict[str, Any] | None, cached: int | None
) -> None:
    counts = {"prompt_tokens": 7, "completion_tokens": 3, "prompt_tokens_details": details}
    assert interpret(event(choices=[], usage=counts)).usage == Usage(7, cached, 3)


def test_token_counts_that_are_none_are_unknown() -> None:
    counts = {"prompt_tokens": None, "completion_tokens": -1}
    assert interpret(event(choices=[], usage=counts)).usage == Usage(None, None, None)


@pytest.mark.parametrize(
    ("payload", "said"),
    [
        (b"{nonsense", "not JSON: {nonsense"),
        (b'"text"', "not a JSON object"),
        (b'{"choices":["x"]}', "no list of choices"),
        (b'{"choices":"xy"}', "no list of choices"),
        (event(error={"message": "engine died", "code": 500}), "stream: engine died"),
        (event(error="engine died"), "stream: engine died"),
        (event(error={"code": 500}), 'stream: {"code":500}'),
    ],
)
def test_what_is_no_event_is_malformed(payload: bytes, said: str) -> None:
    with pytest.raises(Malformed) as caught:
        interpret(payload)
    assert said in str(caught.value)
