"""Keys, headers, extra bodies and addresses as users write them."""

import pytest

from loadgen.client.host import base_url
from loadgen.client.settings import ClientSettings, auth_headers, parse_extra_body, parse_header
from loadgen.errors import HostError, UsageError


def test_our_own_key_comes_first() -> None:
    both = {"KVSWARM_API_KEY": " sk-ours\n", "OPENAI_API_KEY": "sk-open"}
    assert auth_headers(both) == {"Authorization": "Bearer sk-ours"}
    assert auth_headers({"OPENAI_API_KEY": "sk-open"}) == {"Authorization": "Bearer sk-open"}
    assert auth_headers({"KVSWARM_API_KEY": ""}) == {}


def test_a_key_that_cannot_be_sent_is_named_but_not_shown() -> None:
    with pytest.raises(UsageError) as caught:
        auth_headers({"KVSWARM_API_KEY": "sk-1\nX-Evil: 1"})
    assert "KVSWARM_API_KEY" in str(caught.value)
    assert "sk-1" not in str(caught.value)


def test_headers_do_not_show_in_logs_of_the_settings() -> None:
    settings = ClientSettings(url="http://h", model="m", headers={"Authorization": "Bearer sk-1"})
    assert "sk-1" not in repr(settings)


def test_a_header_is_a_name_and_a_value() -> None:
    assert parse_header("X-Tenant:  a: b ") == ("X-Tenant", "a: b")
    assert parse_header("X-Empty:") == ("X-Empty", "")


def test_a_header_replaces_the_key_of_the_environment_in_any_spelling() -> None:
    environment = auth_headers({"KVSWARM_API_KEY": "sk-ours"})
    assert environment | dict([parse_header("authorization: Basic eA==")]) == {
        "Authorization": "Basic eA=="
    }


@pytest.mark.parametrize(
    "text",
    ["sk-secret", ": sk-secret", "X Y: sk-secret", "X: sk-secret\r\nY: z", "content-length: 5"],
)
def test_a_header_that_is_none_is_refused_without_showing_it(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_header(text)
    assert "sk-secret" not in str(caught.value)


def test_an_extra_body_is_an_object() -> None:
    assert parse_extra_body('{"top_p": 0.5, "vllm_xargs": {"a": 1}}') == {
        "top_p": 0.5,
        "vllm_xargs": {"a": 1},
    }


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{top_p: 1}", "is not JSON"),
        ('{"api_key": "sk-secret"', "is not JSON"),
        ('"sk-secret"', "is not a JSON object"),
        ("", "is not JSON"),
        ("[1]", "is not a JSON object"),
        ('{"stream": false}', "'stream'"),
        ('{"prompt": "x"}', "'prompt'"),
        ('{"n": 2}', "'n'"),
    ],
)
def test_an_extra_body_that_makes_no_sense_is_refused(text: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_extra_body(text)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "sk-secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "base"),
    [
        ("http://h:8000", "http://h:8000"),
        ("http://h:8000/", "http://h:8000"),
        ("http://h:8000/v1", "http://h:8000"),
        (" https://h/v1/ ", "https://h"),
        ("https://h/llm/v1/", "https://h/llm"),
        ("http://[::1]:8000/v1", "http://[::1]:8000"),
    ],
)
def test_an_address_has_one_form(url: str, base: str) -> None:
    assert base_url(url) == base


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("localhost:8000", "write http://localhost:8000"),
        ("", "no scheme"),
        ("ftp://h", "use http or https"),
        ("http://", "not a URL"),
        ("http://h:99999", "not a URL"),
        ("http://h:80a", "not a URL"),
        ("http://a b", "not a URL"),
        ("http://h?key=sk-secret", "query"),
        ("http://me:sk-secret@h", "KVSWARM_API_KEY"),
        ("me:sk-secret@h:80", "no scheme"),
        ("http://me:sk-secret@h:99999", "not a URL"),
    ],
)
def test_an_address_that_is_none_is_refused_without_its_secrets(url: str, said: str) -> None:
    with pytest.raises(HostError) as caught:
        base_url(url)
    assert said in str(caught.value)
    assert "sk-secret" not in str(caught.value)
