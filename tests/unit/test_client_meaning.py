"""What a whole body says, in the many ways in which hosts say it."""

import asyncio
import gzip
import json
import time
import urllib.parse
from typing import Any

import pytest
from behaviours import DONE, REPLY, SECRET, delta, event, token, usage
from hypothesis import given
from hypothesis import settings as tries
from hypothesis import strategies as st

from loadgen.client.client import ReplySink, StreamingClient
from loadgen.client.exchange import Exchange
from loadgen.client.failures import Truncated
from loadgen.client.finish import GOOD_FINISHES
from loadgen.client.settings import ClientSettings
from loadgen.client.transport import BROKEN_BODY, Head, Sink

STREAM = Head(200, "text/event-stream")
WORDS = "CUDA out of memory"


class Whole:
    """A transport whose reply is at once there, and cut off where `is_broken`."""

    def __init__(self, body: bytes, head: Head, is_broken: bool) -> None:
        self._body, self._head, self._is_broken = body, head, is_broken

    async def post(self, body: bytes, sink: Sink, *more: Any) -> None:
        sink.begin(self._head)
        if sink.feed(self._body, time.perf_counter()):
            return
        if self._is_broken:
            raise Truncated(BROKEN_BODY)

    async def warm(self, connections: int) -> None:
        return


def said(*parts: bytes, head: Head = STREAM, is_broken: bool = False, **settings: Any) -> Exchange:
    async def stream() -> Exchange:
        exchange = Exchange()
        transport = Whole(b"".join(parts), head, is_broken)
        options = ClientSettings(url="http://h", model="m", **settings)
        async with StreamingClient(options, transport) as client:
            await client.stream("hi", 3, exchange)
        return exchange

    return asyncio.run(stream())


def counts(**told: Any) -> bytes:
    return event(choices=[], usage=told)


FINISHES: dict[str, list[Any]] = {
    "ok": [
        *("stop", "STOP", "length", "MAX_TOKENS", "max-tokens", "eos_token", "end_turn"),
        *("tool_calls", "Stop Sequence", {"type": "stop"}, {"type": "length", "length": 3}),
        *("endTurn", "FinishReason.STOP", "FINISH_REASON_MAX_TOKENS", "toolUse", "normal"),
        *("max_new_tokens", "model_context_window_exceeded", "content_filtered", ["stop"]),
    ],
    "truncated": [
        *("abort", "ABORT", "error", "cancelled", "timeout", "insufficient_system_resource"),
        *("null", "NULL", "None", "", "not_finished", "whatever comes next", 7),
        *("USER_CANCEL", "ErrorLimit", "FinishReason.ABORT", "time_limit", "SAFETY", "NotFinished"),
        *({"type": "abort"}, {"type": None}, {"reason": "cancelled"}, {}, None),
    ],
}


@pytest.mark.parametrize(
    ("outcome", "reason"),
    [(outcome, reason) for outcome in FINISHES for reason in FINISHES[outcome]],
)
def test_only_a_known_good_finish_is_ok(outcome: str, reason: Any) -> None:
    last = event(choices=[{"text": "", "finish_reason": reason}])
    assert said(*REPLY[:2], last, usage(), DONE).outcome == outcome


@pytest.mark.parametrize("reason", ["abort", "USER_CANCEL", "network_error", "TimeLimit"])
def test_a_word_for_giving_up_is_told_as_such(reason: str) -> None:
    """Even where the stream lacks its end too."""
    gave_up = f"the engine gave up: finish reason {reason!r}"
    assert said(*REPLY[:2], token("", reason), usage(), DONE).error == gave_up
    assert said(*REPLY[:2], token("", reason)).error == gave_up


@pytest.mark.parametrize(
    "choice",
    [
        {"text": WORDS, "finish_reason": "error"},
        {"delta": {"content": WORDS}, "finish_reason": "error"},
        {"delta": {"role": "assistant", "content": WORDS}, "finish_reason": "error"},
        {"text": "", "finish_reason": {"type": "error", "message": WORDS}},
        {"delta": {}, "finish_reason": {"reason": "error", "error": {"message": WORDS}}},
    ],
)
@pytest.mark.parametrize("end", [(), (usage(), DONE)])
def test_words_beside_a_bad_finish_are_told(choice: dict[str, Any], end: tuple[bytes, ...]) -> None:
    exchange = said(*REPLY[:2], event(choices=[choice]), *end)
    gave_up = "the engine gave up: finish reason 'error'; the host said: "
    assert (exchange.outcome, exchange.error) == ("truncated", gave_up + WORDS)


@pytest.mark.parametrize("reason", ["SAFETY", "whatever comes next", "7"])
def test_an_unknown_reason_is_told_and_not_guessed(reason: str) -> None:
    error = said(*REPLY[:2], token("", reason), usage(), DONE).error
    assert error == f"unknown finish reason {reason!r}: it does not say that the reply is whole"


@pytest.mark.parametrize("reason", ["FINISH_REASON_UNSPECIFIED", "NOT_FINISHED", "in_progress"])
def test_a_choice_that_goes_on_by_any_word_may_end_well(reason: str) -> None:
    exchange = said(token("a", reason), token("b", reason), token("", "stop"), usage(), DONE)
    assert (exchange.outcome, len(exchange.token_times)) == ("ok", 2)


def test_who_gave_up_did_so_whatever_a_gateway_adds() -> None:
    assert said(*REPLY[:2], token("", "abort"), token("", "stop"), DONE).outcome == "truncated"


RUNNING: dict[str, Any] = {"usage": {"prompt_tokens": 7, "completion_tokens": 1}}


@pytest.mark.parametrize(
    "body",
    [
        (*REPLY[:2], usage()),
        (*REPLY[:2], usage(), DONE),
        (token("a", "null", **RUNNING), token("b", "null", **RUNNING)),
        (token("a", "None", **RUNNING), DONE),
        REPLY,
    ],
)
@pytest.mark.parametrize("is_broken", [False, True])
def test_a_reply_without_its_end_is_not_ok(body: tuple[bytes, ...], is_broken: bool) -> None:
    assert said(*body, is_broken=is_broken).outcome == "truncated"


def test_usage_before_the_finish_is_enough_where_the_body_ended_well() -> None:
    assert said(*REPLY[:2], usage(), REPLY[2]).outcome == "ok"
    assert said(*REPLY[:2], usage(), REPLY[2], is_broken=True).outcome == "truncated"


ENDS = {
    "space": b"data: [DONE] \n\n",
    "tab": b"data:\t[DONE]\n\n",
    "none": b"data:[DONE]\n\n",
    "quotes": b'data: "[DONE]"\n\n',
    "small": b"data: [done]\n\n",
    "one line end": b"data: [DONE]\n",
    "no line end": b"data: [DONE]",
    "an id and a comment": b": bye\nid: 9\ndata: [DONE]\n\n",
    "a name": b"event: done\ndata: [DONE]\n\n",
    "CR": b"data: [DONE]\r\r",
    "a zero byte": b"data: [DONE]\x00\n\n",
    "no brackets": b"data: DONE\n\n",
    "twice, and garbage": DONE + DONE + b"garbage",
}


@pytest.mark.parametrize("name", ENDS)
def test_done_may_be_written_in_many_ways(name: str) -> None:
    exchange = said(*REPLY, ENDS[name])
    assert (exchange.outcome, len(exchange.token_times)) == ("ok", 3)


@pytest.mark.parametrize("line_end", [b"\n", b"\r\n", b"\r"])
@pytest.mark.parametrize("start", [b"", b"\xef\xbb\xbf", b": hello\n\n", b"retry: 9\n\n"])
def test_lines_may_end_and_begin_as_the_standard_has_it(start: bytes, line_end: bytes) -> None:
    body = (start + b"".join((*REPLY, usage(), DONE))).replace(b"\n", line_end)
    exchange = said(body)
    assert (exchange.outcome, exchange.output_tokens, len(exchange.token_times)) == ("ok", 3, 3)


def test_an_event_with_a_harmless_name_is_read_like_any_other() -> None:
    named = (b"event: default\n" + each for each in REPLY)
    exchange = said(*named, token("", "stop"), usage(), DONE)
    assert (exchange.outcome, len(exchange.token_times)) == ("ok", 3)


ERROR = json.dumps({"message": WORDS, "code": 500})
TOLD: dict[str, str] = {
    "event": f"event: error\ndata: {ERROR}\n\n",
    "event in capitals": f"event: Error\ndata: {WORDS}\n\n",
    "event of a provider": f"event: response.failed\ndata: {ERROR}\n\n",
    "event without its end": f"event: error\ndata: {ERROR}",
    "field": f"error: {ERROR}\n\n",
    "object": f'data: {{"object":"error","message":"{WORDS}"}}\n\n',
    "type": f'data: {{"type":"error","text":"{WORDS}"}}\n\n',
    "detail": f'data: {{"detail":"{WORDS}"}}\n\n',
    "message": f"data: {ERROR}\n\n",
    "msg": f'data: {{"code":1302,"msg":"{WORDS}"}}\n\n',
    "both": f'data: {{"error":"Internal Server Error","message":"{WORDS}"}}\n\n',
    "error_msg": f'data: {{"error_code":336,"error_msg":"{WORDS}"}}\n\n',
    "error": f'data: {{"error":{{"message":"{WORDS}"}}}}\n\n',
    "error in a choice": f'data: {{"choices":[{{"error":{{"message":"{WORDS}"}}}}]}}\n\n',
    "error beside a choice": f'data: {{"choices":[{{"text":""}}],"error":"{WORDS}"}}\n\n',
    "x_groq": f'data: {{"choices":[{{"delta":{{}}}}],"x_groq":{{"error":"{WORDS}"}}}}\n\n',
    "error in a delta": f'data: {{"choices":[{{"delta":{{"error":"{WORDS}"}}}}]}}\n\n',
    "last words": f'data: {{"choices":[{{"finish_reason":"error","message":"{WORDS}"}}]}}\n\n',
    "success": f'data: {{"success":false,"reason":"{WORDS}"}}\n\n',
    "statusCode": f'data: {{"statusCode":500,"reason":"{WORDS}"}}\n\n',
    "status": f'data: {{"status":"failed","reason":"{WORDS}"}}\n\n',
    "fault": f'data: {{"fault":{{"faultstring":"{WORDS}"}}}}\n\n',
    "exception": f'data: {{"exception":"{WORDS}"}}\n\n',
    "response": f'data: {{"type":"response","response":{{"error":"{WORDS}"}}}}\n\n',
    "base_resp": f'data: {{"base_resp":{{"status_code":1004,"status_msg":"{WORDS}"}}}}\n\n',
    "event named inside": f'data: {{"event":"error","data":{{"message":"{WORDS}"}}}}\n\n',
    "failure": f'data: {{"failure":{{"message":"{WORDS}"}}}}\n\n',
    "state": f'data: {{"state":"FAILED","reason":"{WORDS}"}}\n\n',
    "code as text": f'data: {{"code":"500","reason":"{WORDS}"}}\n\n',
    "code as a name": f'data: {{"code":"InternalError","reason":"{WORDS}"}}\n\n',
    "status as text": f'data: {{"status":"500","title":"{WORDS}"}}\n\n',
    "status as object": f'data: {{"status":{{"code":500,"reason":"{WORDS}"}}}}\n\n',
    "capital": f'data: {{"Message":"{WORDS}"}}\n\n',
    "ok": f'data: {{"ok":false,"reason":"{WORDS}"}}\n\n',
    "success as text": f'data: {{"success":"false","reason":"{WORDS}"}}\n\n',
    "negative": f'data: {{"code":-1,"reason":"{WORDS}"}}\n\n',
    "header": f'data: {{"choices":[{{"text":""}}],"header":{{"code":10013,"msg":"{WORDS}"}}}}\n\n',
    "output": f'data: {{"output":{{"error":"{WORDS}"}}}}\n\n',
    "reason": f'data: {{"reason":"{WORDS}"}}\n\n',
    "success of none": f'data: {{"code":200,"message":"{WORDS}"}}\n\n',
    "object beside": f'data: {{"choices":[{{"delta":{{}}}}],"object":"error",'
    f'"message":"{WORDS}"}}\n\n',
    "code beside": f'data: {{"choices":[{{"text":"x"}}],"code":"500","message":"{WORDS}"}}\n\n',
    "base_resp beside": f'data: {{"choices":[{{"delta":{{}}}}],'
    f'"base_resp":{{"status_code":1013,"status_msg":"{WORDS}"}}}}\n\n',
    **{
        f"event {name}": f'event: {name}\ndata: {{"reason":"{WORDS}"}}\n\n'
        for name in ("busy", "crash", "oom", "engine_dead")
    },
    "event cancelled": f'event: cancelled\ndata: {{"reason":"{WORDS}"}}\n\n',
    "text": f"data: {WORDS}\n\n",
    "JSON text": f'data: "{WORDS}"\n\n',
    "JSON list": f'data: [{{"error":"{WORDS}"}}]\n\n',
    "JSON line": f'{{"error":"{WORDS}"}}\n',
}
UNREAD: dict[str, str] = {
    "JSON without line end": f'{{"error":{{"message":"{WORDS}"}}}}',
    "JSON in lines": json.dumps({"error": {"message": WORDS}}, indent=1),
    "HTML": f"<html>\n<head><title>502 {WORDS}</title></head>\n<body></body>\n</html>\n",
    "plain": f"Internal Server Error: {WORDS}\n",
    "traceback": f"Traceback (most recent call last):\n  File x\nRuntimeError: {WORDS}\n",
}


@pytest.mark.parametrize("name", TOLD)
@pytest.mark.parametrize("end", [b"", DONE, token("", "stop") + usage() + DONE])
def test_a_failure_is_one_in_whatever_form_it_is_told(name: str, end: bytes) -> None:
    exchange = said(REPLY[0], TOLD[name].encode() + (b"\n\n" + end if end else b""))
    assert (exchange.outcome, len(exchange.token_times)) == ("malformed", 1)
    assert WORDS in exchange.error


@pytest.mark.parametrize("name", UNREAD)
def test_words_between_the_events_are_a_failure_whatever_follows(name: str) -> None:
    end = b"\n\n" + token("", "stop") + usage() + DONE
    exchange = said(REPLY[0], UNREAD[name].encode(), end)
    assert exchange.outcome == "malformed"
    assert WORDS in exchange.error


@pytest.mark.parametrize("name", [*TOLD, *UNREAD])
@pytest.mark.parametrize("is_broken", [False, True])
@pytest.mark.parametrize("start", [b"", REPLY[0]])
def test_the_words_of_the_host_are_told(name: str, is_broken: bool, start: bytes) -> None:
    exchange = said(start, (TOLD | UNREAD)[name].encode(), is_broken=is_broken)
    assert exchange.outcome in ("malformed", "truncated")
    assert WORDS in exchange.error


@pytest.mark.parametrize("before", [*range(378, 402), 2380])
def test_a_key_inside_unexpected_data_is_masked_whole(before: int) -> None:
    body = b"data: " + b"x" * before + SECRET.encode() + b"\n\n"
    exchange = said(body, headers={"Authorization": f"Bearer {SECRET}"})
    assert exchange.outcome == "malformed"
    assert SECRET[:7] not in exchange.error


ESCAPED_SECRET = "sk-Ab/9+z_" + 20 * "q" + "=="


@pytest.mark.parametrize(
    "spelt",
    [
        urllib.parse.quote(ESCAPED_SECRET, safe=""),
        urllib.parse.quote_plus(f"Bearer {ESCAPED_SECRET}"),
        *(
            ESCAPED_SECRET.lower(),
            ESCAPED_SECRET.replace("/", "\\/"),
            f"\\u0073{ESCAPED_SECRET[1:]}",
        ),
        *(ESCAPED_SECRET.replace("+", "&#43;"), f"{ESCAPED_SECRET[:9]}\n{ESCAPED_SECRET[9:]}"),
    ],
)
def test_a_key_in_another_spelling_is_not_repeated(spelt: str) -> None:
    error = event(error={"message": f"no such key: {spelt}"})
    exchange = said(REPLY[0], error, headers={"Authorization": f"Bearer {ESCAPED_SECRET}"})
    assert (exchange.outcome, "qqq" in exchange.error.lower()) == ("malformed", False)
    assert "repeat a key" in exchange.error


@pytest.mark.parametrize(
    ("header", "echoed"),
    [
        ("sid=abcdef123456; theme=dark", "abcdef123456"),
        ("ApiKey my-id:topsecretvalue", "topsecretvalue"),
        ("ApiKey my-id:topsecretvalue=", "topsecretvalue"),
        (
            "AWS4-HMAC-SHA256 Credential=AKIA1/x, SignedHeaders=host, Signature=fe5f80f77",
            "fe5f80f77",
        ),
        ("Basic dXNlcjpodW50ZXIy", "hunter2"),
        ('Digest username="somebody1", response="6629fae4"', "6629fae4"),
        ('{"tenant": "a", "key": ["abcdef123456"]}', "abcdef123456"),
        ("tok=abcdef123456&uid=1", "abcdef123456"),
        ("uid=1|abcdef123456", "abcdef123456"),
        ("Bearer eyJhbGciOiJ.eyJzdWIiOiI.c2lnbmF0dXJl", "eyJzdWIiOiI"),
        ("https://h/x?sign(abcdef123456)", "abcdef123456"),
    ],
)
def test_no_part_of_a_header_is_repeated(header: str, echoed: str) -> None:
    error = event(error={"message": f"the signature of {echoed} is unknown"})
    exchange = said(REPLY[0], error, headers={"X": header})
    assert exchange.error == "error inside the stream: the signature of *** is unknown"


def test_a_key_of_the_extra_body_is_not_repeated() -> None:
    number = said(event(error={"message": "no 123456789"}), extra_body={"api_key": 123456789})
    assert number.error == "error inside the stream: no ***"
    body = {"metadata": [{"api_token": {"value": SECRET}}], "user": "somebody"}
    exchange = said(event(error={"message": f"somebody has no {SECRET}"}), extra_body=body)
    assert "somebody has no ***" in exchange.error


def test_what_an_engine_calls_itself_is_short_and_tells_no_key() -> None:
    head = STREAM._replace(served_by=f"a\x1b[2J{SECRET}" + "x" * 9_000)
    exchange = said(*REPLY, usage(), DONE, head=head, headers={"Authorization": SECRET})
    assert exchange.outcome == "ok"
    assert exchange.served_by.startswith("a?[2J***xxx")
    assert len(exchange.served_by) == 300


@pytest.mark.parametrize(
    "odd",
    [
        *({"status": "failed"}, {"code": 500}, {"object": "error"}),
        {"base_resp": {"status_code": 1013}},
        *({"error": {"code": 0, "message": "too much"}}, {"error": {"code": 503, "message": ""}}),
        *({"error": "???"}, {"error": {"success": False}}, {"error": {"message": "..."}}),
        *({"error": {"at": {"message": "lost"}}}, {"error": True}, {"error": ["lost"]}),
    ],
)
def test_a_failure_in_a_form_that_was_good_is_one(odd: dict[str, Any]) -> None:
    good = {"status": "running", "code": 0, "object": "x", "base_resp": {"status_code": 0}}
    parts = [event(choices=[{"text": text}], **good) for text in "abcd"]
    exchange = said(*parts, event(choices=[{"text": "e"}], **(good | odd)), *REPLY, DONE)
    assert (exchange.outcome, len(exchange.token_times)) == ("malformed", 4)


@pytest.mark.parametrize("status", ["503", 503])
def test_a_rejection_may_be_told_by_any_field_of_a_code(status: Any) -> None:
    for told in ({"statusCode": status}, {"Status": status}, {"data": {"code": status}}):
        exchange = said(event(event="error", reason=WORDS, **told), token("", "stop"), DONE)
        assert (exchange.outcome, exchange.error) == (
            "rejected",
            f"error inside the stream: {WORDS}",
        )


def test_what_nobody_can_read_is_told_where_the_reply_is_cut() -> None:
    odd = event(notice_of_next_year="the engine is gone")
    for _ in range(2):
        assert "the engine is gone" in said(REPLY[0], odd).error
        assert "the engine is gone" in said(REPLY[0] + odd, is_broken=True).error
    assert "the host said" not in said(delta(role="assistant"), event(type="ping")).error
    assert said(REPLY[0], odd, *REPLY[1:], usage(), DONE).outcome == "ok"


BODIES: dict[str, tuple[str, str]] = {
    "application/json": (f'{{"error":{{"message":"{WORDS}"}}}}', WORDS),
    "application/json; charset=utf-8": (f'{{"detail":"{WORDS}"}}', WORDS),
    "application/problem+json": (f'{{"title":"x","detail":"{WORDS}"}}', WORDS),
    "application/x-ndjson": (f'{{"status":1}}\n{{"error":"{WORDS}"}}\n', WORDS),
    "text/html": (f"<html><title>{WORDS}</title><body>x</body></html>", WORDS),
    "text/plain": (WORDS, WORDS),
    "": (WORDS, WORDS),
    "text/css": ("", "does a proxy drop `stream`?"),
}


@pytest.mark.parametrize("kind", BODIES)
@pytest.mark.parametrize("is_broken", [False, True])
def test_a_body_that_is_no_stream_is_read(kind: str, is_broken: bool) -> None:
    body, words = BODIES[kind]
    exchange = said(body.encode(), head=Head(200, kind), is_broken=is_broken)
    assert exchange.outcome == "malformed"
    assert "not an event stream" in exchange.error
    assert words in exchange.error


@pytest.mark.parametrize(
    ("coding", "outcome"),
    [
        *((name, "ok") for name in ("none", "utf-8", "null", "identity, identity")),
        *((name, "malformed") for name in ("gzip", "identity, BR", "x-gzip,identity")),
    ],
)
def test_only_a_coding_that_hides_the_text_is_refused(coding: str, outcome: str) -> None:
    head = STREAM._replace(content_encoding=coding)
    assert said(*REPLY, usage(), DONE, head=head).outcome == outcome


@pytest.mark.parametrize("status", [200, 400, 500])
def test_a_compressed_error_is_told_as_such(status: int) -> None:
    body = gzip.compress(b'{"error": "no"}')
    exchange = said(body, head=Head(status, "application/json", content_encoding="gzip"))
    assert exchange.error.endswith(": compressed by gzip")


BENIGN = (
    event(type="ping"),
    event(choices=[], prompt_filter_results=[{"index": 0}]),
    event(choices=[], error={"code": 0, "message": ""}),
    event(choices=[{"text": "", "error": {"code": None, "message": None}}], type="failover"),
    event(choices=[], error=None, x_groq={"id": "r", "usage": None}),
    event(type="response.created", response={"status": "in_progress", "error": None}),
    event(success=True, status="queued", code=200, base_resp={"status_code": 0, "status_msg": ""}),
    event(type="ping", message="keepalive"),
    event(code=0, msg="success", data={"reason": "none"}),
    event(code=20000, message="Ok", status=True, errno=0, errmsg="ok"),
    event(event="queue", data={"message": "you are number 3", "reason": "load"}),
    event(status="processing", reason="waiting for a GPU"),
    event(type="metadata", failover="b", usage_tier="x", stats={"reason": "x"}),
    event(queue_position=3, estimated_s=1.5),
    event(type="search_result", title="How to fail at everything", url="x"),
    event(event="start", message="it begins"),
    event(choices=[{"text": ""}], status="in_progress", code=0, message="", success=True, n=500),
    event(
        choices=[{"text": ""}], object="odd", base_resp={"status_code": 0, "status_msg": "success"}
    ),
    b"event: ping\ndata: {}\n\n",
    b"event: ping\ndata: ping\n\n",
    b"data: 1700000000\r\nevent: heartbeat\r\n\r\n",
    b"data: null\n\n",
    b": OPENROUTER PROCESSING\n\n",
    b"event: message\n\n",
    b"note: unknown fields are skipped\n\n",
)


@pytest.mark.parametrize("benign", BENIGN)
def test_what_tells_no_failure_changes_nothing(benign: bytes) -> None:
    exchange = said(benign, *(part + benign for part in (*REPLY, usage())), DONE)
    assert (exchange.outcome, exchange.error, len(exchange.token_times)) == ("ok", "", 3)


@pytest.mark.parametrize(
    "odd",
    [
        b"event: ping\ndata: overloaded\n\n",
        b'event: ping\ndata: {"choices": [{"te\n\n',
        b"event: message\ndata: ping\n\n",
        b"event: token\ndata: ping\n\n",
        b"data: ping\n\n",
    ],
)
def test_only_the_words_of_a_heartbeat_say_nothing(odd: bytes) -> None:
    assert said(*REPLY, odd, usage(), DONE).outcome == "malformed"
    assert said(REPLY[0], b"event: message\n", *REPLY[1:], usage(), DONE).outcome == "ok"


OUTPUT: list[dict[str, Any]] = [
    {"content": "a"},
    {"content": [{"type": "text", "text": "a"}]},
    {"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "a"}]}]},
    {"reasoning_content": "a"},
    {"reasoning": "a"},
    {"reasoning": {"content": "a"}},
    {"content": "", "reasoning_details": [{"type": "reasoning.text", "text": "a"}]},
    {"thinking": "a"},
    {"thought": "a"},
    {"content": None, "function_call": {"name": "f", "arguments": ""}},
    {"function_call": {"arguments": "{"}},
    {"tool_calls": [{"index": 0, "function": {"arguments": "{"}}]},
    {"audio": {"id": "a1", "data": "AAAA"}},
    {"audio": {"transcript": "a"}},
    {"refusal": "a"},
    {"role": "assistant", "content": "a"},
    {"content": {"type": "text", "text": {"value": "a"}}},
    {"images": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,A"}}]},
    {"thinking_blocks": [{"type": "thinking", "thinking": "a", "signature": ""}]},
    {"tool_calls": [{"index": 0, "type": "custom", "custom": {"input": "a"}}]},
    {"a_field_of_next_year": "a"},
]
NO_OUTPUT: list[dict[str, Any]] = [
    {"role": "assistant"},
    {"role": "assistant", "content": "", "reasoning_content": None, "refusal": None},
    {"content": [], "tool_calls": [], "function_call": {}},
    {"content": [{"type": "text", "text": ""}]},
    {"reasoning_details": [{"type": "reasoning.text", "text": "", "signature": "x", "index": 0}]},
    {"role": "assistant", "content": "", "annotations": [{"title": "x"}], "tool_call_id": "x"},
    {"role": "assistant", "content": "", "name": "bot", "channel": "analysis", "status": "queued"},
    {"reasoning_details": [{"type": "reasoning.encrypted", "data": "gAAA"}]},
    {"thinking_blocks": [{"type": "redacted_thinking", "data": "gAAA"}]},
    {"thought_signature": "gAAA", "reasoning_opaque": "gAAA", "encrypted_content": "gAAA"},
    {"role": "assistant", "context": {"citations": [{"content": "x"}], "intent": "y"}},
    {"content": "", "search_results": [{"title": "x"}], "citations": ["x"]},
    {"audio": {"id": "a1", "expires_at": 9}},
    {"finish_details": {"type": "stop", "stop": "<|fim|>"}, "stop_sequence": "###"},
    {"content_filter_result": {"error": {"code": "x", "message": "not filtered"}}},
]


@pytest.mark.parametrize("brought", OUTPUT)
def test_any_field_that_brings_a_text_is_output(brought: dict[str, Any]) -> None:
    exchange = said(delta(role="assistant"), delta(**brought), delta("stop"), DONE)
    assert (exchange.outcome, len(exchange.token_times)) == ("ok", 1)


@pytest.mark.parametrize("brought", NO_OUTPUT)
def test_a_field_that_only_labels_is_none(brought: dict[str, Any]) -> None:
    exchange = said(delta(**brought), delta("stop"), DONE)
    assert (exchange.outcome, len(exchange.token_times)) == ("ok", 0)


@pytest.mark.parametrize(
    ("brought", "events"),
    [
        ({"text": "", "reasoning": "a"}, 1),
        ({"content": "a"}, 1),
        ({"message": {"content": "a"}}, 1),
        ({"text": "", "native_finish_reason": "x", "matched_stop": "x", "stopping_word": "x"}, 0),
        ({"text": "", "logprobs": {"tokens": ["a"]}, "safety_ratings": [{"category": "x"}]}, 0),
    ],
)
def test_output_may_stand_in_the_choice(brought: dict[str, Any], events: int) -> None:
    first = event(choices=[{"index": 0, "finish_reason": None, **brought}])
    exchange = said(first, token("", "stop"), DONE)
    assert (exchange.outcome, len(exchange.token_times)) == ("ok", events)


EMPTY: list[dict[str, Any]] = [
    *({"delta": {}}, {"delta": {"content": ""}}, {"text": ""}),
    {"delta": {"tool_calls": [{"index": 0, "function": {"arguments": ""}}]}},
]
REPEATED = {"message": {"role": "assistant", "content": "abc"}}


@pytest.mark.parametrize("place", EMPTY)
@pytest.mark.parametrize(
    "label",
    [
        *({name: "</s>"} for name in ("stop_str", "stop", "eos_token", "stopReason", "endReason")),
        *({name: "stop"} for name in ("done_reason", "stop_type", "end_reason", "exit_reason")),
        {},
    ],
)
def test_an_empty_event_at_the_end_is_no_token(
    place: dict[str, Any], label: dict[str, Any]
) -> None:
    label = label if "text" in place else label | REPEATED
    last = event(choices=[{**place, **label, "finish_reason": "stop"}])
    exchange = said(*REPLY[:2], last, usage(), DONE)
    assert (exchange.outcome, len(exchange.token_times)) == ("ok", 2)


@pytest.mark.parametrize("before", [0, 1, 3])
def test_a_whole_message_at_the_end_is_no_further_token(before: int) -> None:
    message = {"role": "assistant", "content": "a" * before or "a"}
    whole = {"index": 0, "finish_reason": "stop", "message": message}
    last = event(object="chat.completion", choices=[whole], usage={"completion_tokens": 3})
    exchange = said(*(delta(content="a") for _ in range(before)), last, DONE)
    assert (exchange.outcome, len(exchange.token_times)) == ("ok", before or 1)


def test_the_last_of_messages_that_come_in_pieces_is_a_token() -> None:
    pieces = [{"message": {"content": "a"}, "finish_reason": end} for end in (None, None, "stop")]
    events = [event(object="chat.completion", choices=[each]) for each in pieces]
    exchange = said(*events, DONE)
    assert (exchange.outcome, len(exchange.token_times)) == ("ok", 3)


COUNTS: list[tuple[bytes, tuple[int | None, int | None]]] = [
    (counts(prompt_tokens=7, completion_tokens=3), (7, 3)),
    (counts(prompt_tokens=7.0, completion_tokens=3.0), (7, 3)),
    (counts(prompt_tokens="7", completion_tokens="3"), (7, 3)),
    (counts(prompt_tokens=7, completion_tokens=None), (7, None)),
    (counts(prompt_tokens=-1, completion_tokens=2.5), (None, None)),
    (counts(prompt_tokens=True, completion_tokens="three"), (None, None)),
    (event(choices=[], x_groq={"usage": {"prompt_tokens": 7, "completion_tokens": 3}}), (7, 3)),
    (event(choices=[], x_groq=None), (None, None)),
    (event(choices=[{"text": "", "usage": {"prompt_tokens": 7, "completion_tokens": 3}}]), (7, 3)),
    (counts(input_tokens=7, output_tokens=3), (7, 3)),
    (counts(prompt_tokens="7.0", completion_tokens=" 3 "), (7, 3)),
    (counts(prompt_tokens=10**30, completion_tokens=2**63), (None, None)),
    (counts(prompt_tokens="9" * 40, completion_tokens="-3"), (None, None)),
    (counts(prompt_tokens=None, input_tokens=7, completion_tokens=None, output_tokens=3), (7, 3)),
]


@pytest.mark.parametrize(("told", "known"), COUNTS)
def test_counts_are_read_where_they_are_whole(
    told: bytes, known: tuple[int | None, int | None]
) -> None:
    exchange = said(*REPLY, told, DONE)
    assert (exchange.prompt_tokens, exchange.output_tokens) == known
    assert exchange.outcome == "ok"


@pytest.mark.parametrize(
    "told",
    [
        {"prompt_cache_hit_tokens": 5},
        {"cached_tokens": 5},
        {"cached_tokens": "5"},
        {"prompt_tokens_details": {"cached_tokens": "5"}},
        {"prompt_tokens_details": {"audio_tokens": 0}, "cached_tokens": 5},
        {"prompt_tokens_details": {"cached_tokens": None}, "prompt_cache_hit_tokens": 5},
        {"prompt_cache_hit_tokens": None, "cached_tokens": 5},
        {"input_tokens_details": {"cached_tokens": 5}},
        {"cache_read_input_tokens": 5, "cache_creation_input_tokens": 1},
    ],
)
def test_cached_tokens_may_stand_in_many_places(told: dict[str, Any]) -> None:
    exchange = said(*REPLY, usage(**told), DONE)
    assert (exchange.prompt_tokens, exchange.cached_tokens) == (7, 5)


def test_prompt_tokens_that_are_counted_apart_are_added_up() -> None:
    told = {"input_tokens": 32, "cache_read_input_tokens": 64, "cache_creation_input_tokens": 4}
    exchange = said(*REPLY, counts(**told, output_tokens=3), DONE)
    assert (exchange.prompt_tokens, exchange.cached_tokens, exchange.error) == (100, 64, "")


@pytest.mark.parametrize(
    "told",
    [
        {"reasoning_tokens": 100},
        {"completion_tokens_details": {}, "reasoning_tokens": "100"},
        {"completion_tokens_details": {"reasoning_tokens": None}, "reasoning_tokens": 100},
        {"output_tokens_details": {"reasoning_tokens": 100}},
        {"completion_tokens_details": {"thinking_tokens": 100}},
        {"completion_tokens_details": None, "output_tokens_details": {"reasoning_tokens": 100}},
    ],
)
def test_hidden_reasoning_may_be_counted_in_many_places(told: dict[str, Any]) -> None:
    exchange = said(*REPLY, usage(completion_tokens=103, **told), DONE)
    assert (exchange.reasoning_tokens, exchange.streamed_tokens) == (100, 3)


def test_more_cached_tokens_than_the_prompt_has_are_left_out_and_told() -> None:
    exchange = said(*REPLY, usage(prompt_tokens_details={"cached_tokens": 11}), DONE)
    assert (exchange.outcome, exchange.cached_tokens) == ("ok", None)
    assert "11 cached of 7 prompt tokens" in exchange.error


def tpot_of(
    reasoning: int, texts: int, prefix: int, tokens: int, **more: Any
) -> tuple[float | None, Exchange]:
    """Of a stream that brings an event every 20 ms: `prefix` of reasoning, then `texts`."""
    exchange, times = Exchange(), iter(range(1, 10_000))
    sink = ReplySink(exchange)
    sink.begin(STREAM)
    for part in [delta(reasoning_content="h")] * prefix + [delta(content="a")] * texts:
        sink.feed(part, next(times) * 0.02)
    told = {
        "completion_tokens": tokens,
        "completion_tokens_details": {"reasoning_tokens": reasoning},
    }
    sink.feed(delta("stop") + event(choices=[], usage={"prompt_tokens": 9, **told, **more}), 999.0)
    return exchange.tpot_ms, exchange


def test_reasoning_that_is_kept_back_is_in_no_time_per_token() -> None:
    assert tpot_of(100, 4, 0, 104)[0] == pytest.approx(20)
    assert tpot_of(100, 4, 100, 104)[0] == pytest.approx(20)
    assert tpot_of(100, 104, 0, 104)[0] == pytest.approx(20)  # in the text
    assert tpot_of(0, 4, 0, 4)[0] == pytest.approx(20)
    assert tpot_of(1000, 40, 10, 1040)[0] is None  # a summary
    assert tpot_of(100, 26, 25, 204)[0] == pytest.approx(20 * 50 / 203)  # four tokens an event
    assert tpot_of(100, 1, 0, 101)[0] is None
    assert tpot_of(100, 5, 0, 104)[0] is None  # more events than other tokens, and few of all
    assert tpot_of(100, 103, 0, 104)[0] == pytest.approx(20 * 102 / 103)
    predicted = {"reasoning_tokens": 0, "rejected_prediction_tokens": 50}
    assert tpot_of(0, 4, 0, 54, completion_tokens_details=predicted)[0] == pytest.approx(20)
    assert tpot_of(100, 4, 0, 4, total_tokens=113)[0] == pytest.approx(20)  # counted beside
    assert tpot_of(100, 4, 0, 104)[1].output_tokens == 104


def test_more_events_than_counted_tokens_are_as_many_tokens() -> None:
    assert tpot_of(100, 4, 100, 4, total_tokens=113)[0] == pytest.approx(20)  # reasoning beside
    assert tpot_of(0, 4, 100, 4)[0] == pytest.approx(20)
    assert tpot_of(0, 40, 0, 2)[0] == pytest.approx(20)
    assert tpot_of(0, 40, 0, 40)[0] == pytest.approx(20)


@pytest.mark.parametrize("last", [3, 4, 30])
def test_a_usage_that_does_not_run_along_proves_no_token(last: int) -> None:
    def role(count: int) -> bytes:
        choice = {"delta": {"role": "assistant", "content": ""}, "finish_reason": None}
        return event(choices=[choice], usage={"prompt_tokens": 7, "completion_tokens": count})

    finish = event(
        choices=[{"delta": {}, "finish_reason": "stop"}],
        usage={"prompt_tokens": 7, "completion_tokens": last},
    )
    tokens = [delta(content=text) for text in "abc"]
    assert len(said(role(0), *tokens, finish, DONE).token_times) == 3
    assert len(said(role(1), *tokens, finish, DONE).token_times) == 3
    assert len(said(role(0), finish, DONE).token_times) == 0


@pytest.mark.parametrize(
    "choice",
    [{"text": ""}, {"delta": {"content": ""}}, {"delta": {}}, {"delta": {"role": "assistant"}}],
)
def test_a_usage_that_comes_once_at_the_start_proves_no_token(choice: dict[str, Any]) -> None:
    first = event(choices=[{"index": 0, **choice}], usage={"completion_tokens": 1})
    exchange = said(first, *REPLY, DONE)
    assert (exchange.outcome, len(exchange.token_times)) == ("ok", 3)


PIECES = st.sampled_from(
    [
        *((REPLY[0], token("", "null"), b": x\n\n", usage()), (DONE, token("", "abort"))),
        (token("", "stop"), token("", "LENGTH"), token("", "odd"), *BENIGN),
        tuple(text.encode() + b"\n\n" for text in TOLD.values()),
    ]
).flatmap(st.sampled_from)


@tries(max_examples=300, deadline=None)
@given(st.lists(PIECES, max_size=8), st.booleans())
def test_a_reply_is_ok_exactly_when_it_is_complete(parts: list[bytes], is_broken: bool) -> None:
    finish, is_counted, is_closed, has_failed = "", False, False, False
    failures = {text.encode() + b"\n\n" for text in TOLD.values()}
    for part in parts:
        if part == DONE or part in failures:
            has_failed, is_closed = part != DONE, is_closed or part == DONE
            break
        for reason in ("stop", "LENGTH", "odd", "abort"):
            if f'"finish_reason": "{reason}"'.encode() in part and finish not in ("odd", "abort"):
                finish = reason
        is_counted = is_counted or part == usage()
        is_closed = is_closed or (part == usage() and finish != "")
    is_closed = is_closed or (is_counted and not is_broken)
    is_good = finish.lower() in GOOD_FINISHES and is_closed and not has_failed
    exchange = said(*parts, is_broken=is_broken)
    assert (exchange.outcome == "ok") == is_good
    assert bool(exchange.error) != is_good
    assert "fault in the client" not in exchange.error
